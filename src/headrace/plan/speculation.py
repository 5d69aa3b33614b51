"""What guessing ahead brings the replicas of a plan: tokens of a step, memory of who guesses, and how much sooner
tokens come, for one request alone and for as many as the load has at once: in the simulator, with the control that
serves.
"""

from dataclasses import replace

from headrace.plan.answer import Figures
from headrace.plan.memory import memory_of
from headrace.plan.question import Question
from headrace.plan.steady import Way
from headrace.simulate.fleet import Fleet
from headrace.simulate.simulator import simulate
from headrace.workload.demand import Demand

_MOST_TOKENS = 300  # of an answer
_THERE = 0
"""The content of all prompts: computed once, so that what is seen are the steps of answers."""


def what_it_brings(question: Question, way: Way, running: float) -> Figures:
    """running: requests at once on a replica under the load. No times where who guesses finds no room beside the
    model."""
    way = replace(way, drafts=way.drafts or max(question.limits.drafts))
    drafter, serving = question.drafter, way.serving
    found: Figures = {
        "model": question.limits.speculative_model or "a layer trained on top",
        "num_speculative_tokens": way.drafts,
        "acceptance": way.accepted,
        "accepted_per_verified_step": way.tokens_per_step - 1,
        "tokens_per_verified_step": way.tokens_per_step,
        "draft_weights_per_gpu_bytes": -(-drafter.weight_bytes(serving.weights) // serving.ranks),
        "draft_kv_per_token_bytes": drafter.spec.kv_bytes(1, serving.cache),
    }
    if memory_of(question.model, serving, way.chunk, question.load, drafter) is None:
        where = f"{serving.devices} {serving.hardware.name}, which cost least without"
        return {**found, "says": f"who guesses, and one request, find no room beside the model on {where}"}
    alone, loaded = (_speed(question, way, requests) for requests in (1, max(round(running), 1)))
    says = "it buys latency at low load, not throughput at high load"
    return {**found, "alone": alone, "at_the_load": loaded, "says": says}


def _speed(question: Question, way: Way, requests: int) -> Figures:
    """Of so many requests at once, with guesses and without."""
    load = question.load
    tokens = min(round(load.output_len), _MOST_TOKENS)
    prompt = ((_THERE, round(load.prefix_len + load.input_len)),)
    fleet = Fleet(
        question.model,
        way.serving,
        max_num_seqs=requests,
        max_num_batched_tokens=max(way.chunk, requests),
        num_speculative_tokens=way.drafts,
        acceptance=way.accepted,
        drafter=question.drafter,
    )
    plain = replace(fleet, num_speculative_tokens=0, drafter=None)
    demands = [Demand(0.0, prompt, tokens) for _ in range(requests)]
    guessed, without = (simulate(demands, one, seed=question.seed) for one in (fleet, plain))
    assert guessed.speculation is not None
    return {
        "requests_at_once": requests,
        "tpot_ms": guessed.tpot_ms.p50,
        "tpot_without_ms": without.tpot_ms.p50,
        "speedup": without.tpot_ms.p50 / guessed.tpot_ms.p50 if guessed.tpot_ms.p50 else 1.0,
        "acceptance_length": guessed.speculation.acceptance_length,
    }

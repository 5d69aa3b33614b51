"""Latency of a closed loop: so many clients at once, each sending its next prompt when its answer has ended, prompts
and answers of one length. It follows from the step times of policy/roofline.py and a few numbers for what a backend
adds; fitted on runs, they can be refitted to another backend's by plan/calibration.py.

A prompt is computed among the others' decodes: who is at its own prompt meanwhile waits for a first token, who decodes
for the next one, so that all of a cycle's work is waited for once. The mean of a benchmark's first tokens has a share
of the burst with which all begin.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.model_spec import ModelSpec
from headrace.policy.latency import StepWork
from headrace.policy.memory import cache_bytes
from headrace.policy.pace import VLLM_HOST
from headrace.policy.pipeline import cut
from headrace.policy.roofline import Roofline, Serving

CHUNK = 8192
"""Tokens of a step at most, as servers on such hardware have it by default."""

# Share of the cache up to which requests do not wait for it: blocks are not packed perfectly, lengths not even.
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Overheads:
    """kernels, step, request: as of Host. prompt: times by which prompts take longer than the roofline says. wait:
    decode steps before a first token. Of those who ask: burst: share of all others' prompts that delays a first token
    in the mean, half a round's if all begin together and that is one of many rounds; together: others' prompts that
    come at the same moment."""

    kernels: float = VLLM_HOST.kernels
    step: float = VLLM_HOST.step
    request: float = VLLM_HOST.request
    prompt: float = 1.0
    wait: float = 3.5
    burst: float = 0.063
    together: float = 0.4


VLLM = Overheads()
"""vLLM 0.12 on H100 and its October 2025 version on H200: between what was fitted to each (docs/planning.md)."""


@dataclass(frozen=True, slots=True)
class Load:
    """clients at once, with prompts and answers of so many tokens."""

    clients: int
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Mean seconds to the first token, and of each token after it."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds on the devices that a load's latencies are made of: a decode step of all clients, one prompt, and for how
    long that keeps others waiting: in a pipeline they follow when it has left the slowest stage."""

    decode: float
    prompt: float
    keeps: float

    @classmethod
    def of(cls, prior: Roofline, load: Load) -> Terms:
        n = load.clients
        context = int(n * (load.prompt + load.answer / 2))
        return cls(prior(StepWork(n, n, context, 0.0, n, n)), *_prompt_seconds(prior, load.prompt))


@dataclass(frozen=True, slots=True)
class Cycle:
    """From one prompt of a client to its next, while the cache holds all clients. decode: seconds of a step with the
    host's. prompt: of one prompt alone. keeps: of another's that is before it. met: of others' prompts that are under
    way when it comes, at random, or come with it. left: of the others' prompts that come while it decodes."""

    decode: float
    prompt: float
    keeps: float
    met: float
    left: float

    @classmethod
    def of(cls, terms: Terms, load: Load, numbers: Overheads) -> Cycle:
        others = load.clients - 1
        decode = numbers.kernels * terms.decode + numbers.step + numbers.request * load.clients
        prompt, keeps = numbers.prompt * terms.prompt, numbers.prompt * terms.keeps
        # Each of the others is at its prompt for this share of its time, and then half of it is left on average.
        at_prompt = prompt / (load.answer * decode + prompt)
        met = others * at_prompt * keeps / 2 + numbers.together * min(others, 1) * keeps
        return cls(decode, prompt, keeps, met, max(others * keeps - met, 0.0))


def latency(terms: Terms, load: Load, numbers: Overheads) -> Latency:
    """While the cache holds all clients."""
    cycle = Cycle.of(terms, load, numbers)
    burst = numbers.burst * (load.clients - 1) * cycle.keeps
    ttft = cycle.prompt + cycle.met + numbers.wait * cycle.decode + burst
    return Latency(ttft, cycle.decode + cycle.left / max(load.answer - 1, 1))


def queued_latency(prior: Roofline, load: Load, running: int, numbers: Overheads) -> Latency:
    """Where the cache holds only so many of the clients, the others wait for their turn."""
    running = min(running, load.clients)
    inside = Load(running, load.prompt, load.answer)
    served = latency(Terms.of(prior, inside), inside, numbers)
    each = (served.ttft + load.answer * served.tpot) / running
    return Latency(served.ttft + (load.clients - running) * each, served.tpot)


def clients_held(spec: ModelSpec, serving: Serving, load: Load) -> tuple[int, int]:
    """Clients that the cache holds at once with their sequences whole, so that none ever waits for it, and as they are
    on average, which is how many run where more are there. ConfigError where the weights alone do not fit."""
    held = []
    for stage in cut(spec, serving.stages):
        left = cache_bytes(stage, serving)
        whole = _FULL * left / stage.spec.kv_bytes(load.prompt + load.answer, serving.cache, serving.ranks)
        running = left / stage.spec.kv_bytes(load.prompt + load.answer // 2, serving.cache, serving.ranks)
        held.append((int(whole), int(running)))
    return min(held)


def _prompt_seconds(prior: Roofline, tokens: int) -> tuple[float, float]:
    """Of a prompt's way through all stages, one chunk behind the other, and in the slowest stage alone."""
    free: list[float] = []  # when each stage has done the chunks so far
    slowest, done = 0.0, 0
    while done < tokens:
        chunk = min(CHUNK, tokens - done)
        stages = prior.stages(StepWork(chunk, 1, 0, chunk * (done + chunk / 2), 1, 1))
        free, before, now = [], free or [0.0] * len(stages), 0.0
        for stage, earlier in zip(stages, before, strict=True):
            now = max(now, earlier) + stage.seconds
            free.append(now)
        slowest += max(stage.seconds for stage in stages)
        done += chunk
    return free[-1], slowest

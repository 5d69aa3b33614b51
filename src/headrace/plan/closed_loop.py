"""Latency of a closed loop: so many clients at once, each sending its next prompt when its answer has ended, prompts
and answers of one length. It follows from the step times of policy/roofline.py and a few numbers for what a backend
adds; fitted on runs, they can be refitted to another backend's by plan/calibration.py.

A token waits for its decode step, for the host, and for its share of the others' prompts. A first token waits for its
own prompt, for a few steps under way, and, in the mean of a benchmark, for the burst with which all begin.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.model_spec import ModelSpec
from headrace.policy.latency import Prior, StepWork
from headrace.policy.memory import cache_bytes
from headrace.policy.pace import VLLM_HOST
from headrace.policy.pipeline import cut
from headrace.policy.roofline import Serving

CHUNK = 8192
"""Tokens of a step at most, as servers on such hardware have it by default."""

# Share of the cache up to which requests do not wait for it: blocks are not packed perfectly, lengths not even.
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Overheads:
    """kernels, step, request: as of Host. prompt: times by which prompts take longer than the roofline says.
    interference: share of the others' prompts that delays a token. burst: share of all clients' prompts that delays a
    first token in the mean. wait: decode steps before it."""

    kernels: float = VLLM_HOST.kernels
    step: float = VLLM_HOST.step
    request: float = VLLM_HOST.request
    interference: float = 0.73
    prompt: float = 1.0
    burst: float = 0.048
    wait: float = 4.25


VLLM = Overheads()
"""vLLM 0.12 on H100 and its October 2025 version on H200: fitted to 143 runs (docs/planning.md)."""


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
    """Seconds on the devices that a load's latencies are made of: a decode step of all clients, one prompt, and what
    all clients' prompts take for each token of an answer."""

    decode: float
    prompt: float
    shared: float

    @classmethod
    def of(cls, prior: Prior, load: Load) -> Terms:
        n = load.clients
        context = int(n * (load.prompt + load.answer / 2))
        prompt = _prompt_seconds(prior, load.prompt)
        return cls(prior(StepWork(n, n, context, 0.0, n, n)), prompt, n * prompt / load.answer)


def latency(terms: Terms, load: Load, numbers: Overheads) -> Latency:
    """While the cache holds all clients."""
    host = numbers.step + numbers.request * load.clients
    tpot = numbers.kernels * terms.decode + host + numbers.interference * terms.shared
    ttft = numbers.prompt * terms.prompt + numbers.burst * load.clients * terms.prompt + numbers.wait * tpot
    return Latency(ttft, tpot)


def queued_latency(prior: Prior, load: Load, running: int, numbers: Overheads) -> Latency:
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


def _prompt_seconds(prior: Prior, tokens: int) -> float:
    total, done = 0.0, 0
    while done < tokens:
        chunk = min(CHUNK, tokens - done)
        total += prior(StepWork(chunk, 1, 0, chunk * (done + chunk / 2), 1, 1))
        done += chunk
    return total

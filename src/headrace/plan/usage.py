"""Which limit binds: how much of its GPUs' arithmetic, bandwidth, memory and links a replica uses in its steady state,
and how few GPUs each limit would allow if it alone counted (the floors, below which no answer can be).
"""

import math

from headrace.core.model_spec import ModelSpec
from headrace.plan.candidate import Candidate, Pool
from headrace.plan.question import Load
from headrace.plan.steady import Point
from headrace.policy.kernel_curves import multiplies
from headrace.policy.roofline import Serving

LIMITS = ("arithmetic", "bandwidth", "memory", "network")
_FULL = 0.97  # of the memory for requests, from which on it is what binds


def usage(pool: Pool, point: Point) -> dict[str, float]:
    """Shares used of each limit: of the peak arithmetic, of memory bandwidth, of the KV cache at the peak, and of the
    step's time for communication."""
    replica, serving = pool.replica, pool.replica.way.serving
    spec, work = replica.spec, point.work
    gpu, devices = serving.hardware, serving.devices
    operations = 2.0 * (work.tokens * _layers(spec) + work.logit_rows * spec.vocab_size * spec.hidden)
    read = spec.weight_bytes(serving.weights) + work.decode_context * _token_bytes(spec, serving)
    step = replica.parts(point).seconds
    return {
        "arithmetic": operations / devices / _peak(serving) / step,
        "bandwidth": read / devices / gpu.bandwidth / step,
        "memory": min(point.peak / replica.memory.most_running, 1.0),
        "network": replica.parts(point).communication / step,
    }


def binding(candidate: Candidate) -> str:
    """The limit that keeps the larger pool's replicas from more: the links between pools, a full cache, or else what
    fills the steps, which the times asked for let be no longer."""
    counted = zip(candidate.pools, candidate.replicas, strict=True)
    pool = max(counted, key=lambda one: one[0].devices * one[1])[0]
    if pool.bound:
        return pool.bound
    used = usage(pool, pool.most)
    if used["memory"] >= _FULL and pool.most.peak:
        return "memory"
    return max(("arithmetic", "bandwidth", "network"), key=lambda limit: used[limit])


def floors(spec: ModelSpec, serving: Serving, load: Load, rate: float, tpot: float) -> dict[str, int]:
    """GPUs that each limit alone asks for, at 100 % of it: products of all tokens with the weights; reading each
    request's keys and values for each token; keeping the requests that are running at once (Little's law)."""
    gpu = serving.hardware
    heads = spec.vocab_size * spec.hidden
    operations = 2.0 * ((load.computed + load.output_len) * _layers(spec) + load.output_len * heads)
    middle = load.input_len + load.output_len / 2
    read = load.output_len * spec.kv_bytes(int(load.prefix_len + middle), serving.cache)
    held = load.output_len * tpot * spec.kv_bytes(int(middle), serving.cache)
    return {
        "arithmetic": math.ceil(rate * operations / _peak(serving)),
        "bandwidth": math.ceil(rate * read / gpu.bandwidth),
        "memory": math.ceil((rate * held + spec.weight_bytes(serving.weights)) / gpu.memory_bytes),
    }


def _layers(spec: ModelSpec) -> int:
    """Weights that each token is multiplied with, the head's left out."""
    return spec.active_parameters - spec.vocab_size * spec.hidden * (1 if spec.tied_embeddings else 2)


def _peak(serving: Serving) -> float:
    return serving.hardware.peak(multiplies(serving.hardware, str(serving.weights)))


def _token_bytes(spec: ModelSpec, serving: Serving) -> float:
    """Bytes that a token's keys and values take on all devices of a replica."""
    return spec.kv_bytes(1024, serving.cache, serving.ranks) * serving.ranks / 1024

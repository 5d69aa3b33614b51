"""Memory of one GPU, byte by byte: weights, keys and values, activations, graphs and communication, and what is kept
free. Of a pipeline it is the stage that holds the fewest requests. The parts add up to the GPU's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.model_spec import ModelSpec
from headrace.plan.question import Load
from headrace.policy.memory import BESIDE, USABLE
from headrace.policy.pipeline import Stage, cut
from headrace.policy.roofline import Serving

BLOCK = 16
"""Tokens of a KV block."""

_GRAPHS = 1e9  # bytes for graphs and communication at least
_ACTIVATION = 2  # bytes of one value
# Hidden states of a token that are alive at once: residual, normed input, output and a copy for the all-reduce.
_ALIVE = 4
_PACKED = 0.95  # share of the cache that running requests fill before they wait: their lengths do not add up evenly


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU. prefix: keys and values of what every prompt begins with, kept once. cache: what is left for
    requests' own. request: of one request whole; running: of one in the middle of its answer."""

    weights: int
    prefix: int
    cache: int
    activations: int
    graphs: int
    reserve: int
    request: int
    running: float

    @property
    def held(self) -> int:
        """Whole requests that the cache holds at once."""
        return self.cache // self.request

    @property
    def most_running(self) -> float:
        """Requests that the cache holds when each is on average in the middle of its answer."""
        return _PACKED * self.cache / self.running

    def parts(self) -> dict[str, int]:
        return {
            "weights": self.weights,
            "kv_prefix": self.prefix,
            "kv_cache": self.cache,
            "activations": self.activations,
            "graphs_and_communication": self.graphs,
            "reserve": self.reserve,
        }


def memory_of(spec: ModelSpec, serving: Serving, chunk: int, load: Load) -> Memory | None:
    """None where the weights, or not even one request beside them, fit."""
    found = [_stage(stage, serving, chunk, load) for stage in cut(spec, serving.stages)]
    fullest = min(found, key=lambda memory: memory.cache / memory.request)
    return fullest if fullest.held >= 1 else None


def stage_weights(stage: Stage, serving: Serving) -> int:
    """Bytes of a stage's weights on each of its ranks."""
    return -(-stage.weight_bytes(serving.weights) // serving.ranks)


def _stage(stage: Stage, serving: Serving, chunk: int, load: Load) -> Memory:
    spec, ranks, total = stage.spec, serving.ranks, serving.hardware.memory_bytes
    reserve = total - int(total * USABLE)
    weights = stage_weights(stage, serving)
    activations = _activations(spec, ranks, chunk)
    graphs = int(max(BESIDE - activations, _GRAPHS))
    prefix = spec.kv_bytes(_blocks(load.prefix_len), serving.cache, ranks)
    own = spec.kv_bytes(_blocks(load.whole), serving.cache, ranks)
    running = spec.kv_bytes(int(load.input_len + load.output_len / 2 + BLOCK / 2), serving.cache, ranks)
    cache = total - reserve - weights - activations - graphs - prefix
    return Memory(weights, prefix, cache, activations, graphs, reserve, own, running)


def _activations(spec: ModelSpec, ranks: int, chunk: int) -> int:
    """Of a step of so many tokens: hidden states, one layer's widest, and logits for a hundredth of the tokens."""
    widest = max(
        (2 if layer.mlp.gated else 1)
        * (layer.mlp.hidden * (layer.mlp.experts_per_token or 1) + layer.mlp.shared_hidden)
        for layer in spec.layers
    )
    return chunk * _ACTIVATION * (_ALIVE * spec.hidden + widest // ranks)


def _blocks(tokens: float) -> int:
    return -(-int(tokens) // BLOCK) * BLOCK

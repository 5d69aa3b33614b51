"""Memory of one GPU, byte by byte: weights, keys and values, activations, graphs and communication, and what is kept
free. Of a pipeline it is the stage that holds the fewest requests. The parts add up to the GPU's memory.
"""

from dataclasses import dataclass

from headrace.core.model_spec import ModelSpec
from headrace.plan.question import Load
from headrace.policy.draft_model import DraftModel
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
    """Bytes of one GPU. draft: weights of a model that guesses ahead, whose keys and values count with the model's.
    prefix: keys and values of what every prompt begins with, kept once. cache: what is left for
    requests' own. request: of one request whole; running: of one in the middle of its answer."""

    weights: int
    draft: int
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
            **({"draft_weights": self.draft} if self.draft else {}),
            "kv_prefix": self.prefix,
            "kv_cache": self.cache,
            "activations": self.activations,
            "graphs_and_communication": self.graphs,
            "reserve": self.reserve,
        }


def memory_of(
    spec: ModelSpec, serving: Serving, chunk: int, load: Load, drafter: DraftModel | None = None
) -> Memory | None:
    """None where the weights, or not even one request beside them, fit."""
    found = [_stage(stage, serving, chunk, load, drafter) for stage in cut(spec, serving.stages)]
    fullest = min(found, key=lambda memory: memory.cache / memory.request)
    return fullest if fullest.held >= 1 else None


def stage_weights(stage: Stage, serving: Serving) -> int:
    """Bytes of a stage's weights on each of its ranks."""
    return -(-stage.weight_bytes(serving.weights) // serving.ranks)


def _stage(stage: Stage, serving: Serving, chunk: int, load: Load, drafter: DraftModel | None) -> Memory:
    spec, ranks, total = stage.spec, serving.ranks, serving.hardware.memory_bytes
    reserve = total - int(total * USABLE)
    weights = stage_weights(stage, serving)
    activations = _activations(spec, ranks, chunk)
    graphs = int(max(BESIDE - activations, _GRAPHS))
    draft = 0 if drafter is None else -(-drafter.weight_bytes(serving.weights) // ranks)

    def kept(tokens: int) -> int:
        specs = (spec,) if drafter is None else (spec, drafter.spec)
        return sum(one.kv_bytes(tokens, serving.cache, ranks) for one in specs)

    prefix, own = kept(_blocks(load.prefix_len)), kept(_blocks(load.whole))
    running = kept(int(load.input_len + load.output_len / 2 + BLOCK / 2))
    cache = total - reserve - weights - draft - activations - graphs - prefix
    return Memory(weights, draft, prefix, cache, activations, graphs, reserve, own, running)


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

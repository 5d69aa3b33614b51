"""Roofline: seconds of a step on hardware that need not be there, from a model's shapes, the hardware's limits and how
near to them its kernels come. It is a prior of policy/latency.py, the simulator's clock and the planner's answer.

One decoder runs over `ranks` devices of a node, tensor parallel: every matrix is cut, each layer ends its attention and
its feed-forward in an all-reduce. Norms, rope and activations are counted as memory traffic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware
from headrace.core.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, item_bytes
from headrace.policy.fitted_kernels import kernels_of
from headrace.policy.kernel_curves import Kernels, multiplies
from headrace.policy.latency import StepWork

_ACTIVATION = 2  # bytes of one activation
# Times that a token's hidden state is read or written beside the matrices: two norms and two residual sums.
_PASSES = 8
_LAUNCH = 2e-6  # of an elementwise kernel inside a graph
_LAUNCHES = 5  # of them in a layer: two norms, rope, the cache's write, the activation
_SAMPLING_PASSES = 6  # over float32 logits
_REMEMBERED = 65536


@dataclass(frozen=True, slots=True)
class Serving:
    """How one replica runs a model: on `ranks` devices, weights and cache kept in these dtypes."""

    hardware: Hardware
    ranks: int = 1
    weights: str = "bf16"
    cache: str = "bf16"


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a step by what they went to."""

    gemm: float
    attention: float
    communication: float
    elementwise: float

    @property
    def seconds(self) -> float:
        return self.gemm + self.attention + self.communication + self.elementwise


class Roofline:
    """A Prior: seconds of a step's work on the devices alone, without what the host adds."""

    def __init__(self, spec: ModelSpec, serving: Serving, kernels: Kernels | None = None) -> None:
        hardware = serving.hardware
        if not 1 <= serving.ranks <= hardware.per_node:
            raise ConfigError(
                f"tensor parallel size must be 1 to {hardware.per_node}, the {hardware.name}s that one node joins, "
                f"got {serving.ranks}",
                field="tensor_parallel_size",
            )
        self._spec = spec
        self._serving = serving
        self._kernels = kernels or kernels_of(hardware.name)
        self._layers = Counter(spec.layers)
        dtype = multiplies(hardware, serving.weights)
        self._gemm, self._peak = self._kernels.gemm_of(dtype), hardware.peak(dtype)
        self._item = item_bytes(serving.weights)
        self._wide = hardware.peak(multiplies(hardware, "bf16"))
        self._by_tokens: dict[tuple[int, int], tuple[float, float, float]] = {}

    def __call__(self, work: StepWork) -> float:
        return self.parts(work).seconds

    def parts(self, work: StepWork) -> Parts:
        """The step's seconds by what they went to."""
        key = work.tokens, work.logit_rows
        known = self._by_tokens.get(key)
        if known is None:
            if len(self._by_tokens) >= _REMEMBERED:
                self._by_tokens.clear()
            known = self._by_tokens[key] = self._of_tokens(*key)
        gemm, communication, elementwise = known
        attention = sum(count * self._attention(layer.attention, work) for layer, count in self._layers.items())
        return Parts(gemm, attention, communication, elementwise)

    def _of_tokens(self, tokens: int, rows: int) -> tuple[float, float, float]:
        """What depends on the number of tokens alone."""
        hidden, ranks = self._spec.hidden, self._serving.ranks
        bandwidth = self._serving.hardware.bandwidth * self._gemm.memory
        gemm = elementwise = 0.0
        for layer, count in self._layers.items():
            gemm += count * sum(self._matrix(*shape) for shape in _matrices(layer, hidden, ranks, tokens))
            traffic = tokens * _ACTIVATION * (_PASSES * hidden + 3 * _width(layer.mlp) / ranks)
            elementwise += count * (_LAUNCHES * _LAUNCH + traffic / bandwidth)
        if rows:
            vocabulary = self._spec.vocab_size / ranks
            curve, hardware = self._kernels.gemm_of("bf16"), self._serving.hardware
            gemm += curve.seconds(rows, vocabulary, hidden, _ACTIVATION, self._wide, hardware.bandwidth)
            elementwise += rows * self._spec.vocab_size * 4 * _SAMPLING_PASSES / bandwidth
        reduce = self._kernels.all_reduce.seconds(tokens * hidden * _ACTIVATION, ranks, self._serving.hardware.link)
        return gemm, 2 * len(self._spec.layers) * reduce, elementwise

    def _matrix(self, m: float, n: float, k: float, copies: float) -> float:
        """m rows in all pass so many copies of an n by k matrix, each its share."""
        bandwidth = self._serving.hardware.bandwidth
        return self._gemm.seconds(m / copies, n * copies, k, self._item, self._peak, bandwidth)

    def _attention(self, a: AttentionSpec, work: StepWork) -> float:
        """One layer's."""
        ranks, hardware = self._serving.ranks, self._serving.hardware
        total = 0.0
        singles = work.requests
        if work.prefill_pairs:
            singles = _singles(work)
            chunk = max(work.tokens - singles, 1)
            length = work.prefill_pairs / chunk
            if a.window is not None:
                length = min(length, a.window)
            width = a.heads / ranks * (a.head_dim + a.v_head_dim)
            total += self._kernels.prefill.seconds(chunk * length, length, width, self._wide)
        if work.decode_context:
            context = work.decode_context / max(singles, 1)
            if a.window is not None:
                context = min(context, a.window)
            per_token = _kept(a, ranks) * item_bytes(self._serving.cache)
            total += self._kernels.decode.seconds(singles * context * per_token, singles, hardware.bandwidth)
        return total


def _singles(work: StepWork) -> int:
    """Entries of one token, as far as the work says: those that could be if one entry were a chunk."""
    return work.requests - 1 if work.decode_context else 0


def _kept(a: AttentionSpec, ranks: int) -> float:
    """Values of one token that each rank keeps of a layer: heads are cut, and repeated where ranks are more."""
    if a.latent is not None:
        return a.latent.kv_rank + a.latent.rope_dim
    return max(a.kv_heads / ranks, 1) * (a.head_dim + a.v_head_dim)


def _width(m: MlpSpec) -> int:
    """Hidden values of one token."""
    return m.hidden * (m.experts_per_token or 1) + m.shared_hidden


def _matrices(layer: LayerSpec, hidden: int, ranks: int, tokens: int) -> list[tuple[float, float, float, float]]:
    """(rows, outputs, inputs, copies) of a layer's matrices on one rank."""
    a, m = layer.attention, layer.mlp
    shapes: list[tuple[float, float, float, float]] = []
    if a.latent is not None:
        c = a.latent
        q_width = a.heads * (c.nope_dim + c.rope_dim) / ranks
        if c.q_rank is None:
            shapes.append((tokens, q_width, hidden, 1))
        else:
            shapes += [(tokens, c.q_rank + c.kv_rank + c.rope_dim, hidden, 1), (tokens, q_width, c.q_rank, 1)]
        shapes.append((tokens, a.heads / ranks * (c.nope_dim + a.v_head_dim), c.kv_rank, 1))
    else:
        kept = max(a.kv_heads / ranks, 1)
        shapes.append((tokens, a.heads / ranks * a.head_dim + kept * (a.head_dim + a.v_head_dim), hidden, 1))
    shapes.append((tokens, hidden, a.heads / ranks * a.v_head_dim, 1))
    into = 2 if m.gated else 1
    if m.experts:
        taken = m.experts * (1 - (1 - m.experts_per_token / m.experts) ** tokens)
        rows = tokens * m.experts_per_token
        shapes += [(rows, into * m.hidden / ranks, hidden, taken), (rows, hidden, m.hidden / ranks, taken)]
    dense = m.shared_hidden if m.experts else m.hidden
    if dense:
        shapes += [(tokens, into * dense / ranks, hidden, 1), (tokens, hidden, dense / ranks, 1)]
    return shapes

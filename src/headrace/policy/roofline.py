"""Roofline: seconds of a step on hardware that need not be there, from a model's shapes, the hardware's limits and how
near to them its kernels come. It is a prior of policy/latency.py, the simulator's clock and the planner's answer.

Each stage of a pipeline runs its layers over `ranks` devices of a node, tensor parallel: every matrix is cut, each
layer ends its attention and its feed-forward in an all-reduce. Norms, rope and activations are memory traffic.
"""

from collections import Counter
from dataclasses import dataclass, replace

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware
from headrace.core.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, WeightTypes, item_bytes
from headrace.policy.fitted_kernels import kernels_of
from headrace.policy.kernel_curves import Kernels, Multiplier
from headrace.policy.latency import StepWork
from headrace.policy.pipeline import cut, period

_ACTIVATION = 2  # bytes of one activation
# Times that a token's hidden state is read or written beside the matrices: two norms and two residual sums.
_PASSES = 8
_LAUNCH = 2e-6  # of an elementwise kernel inside a graph
_LAUNCHES = 5  # of them in a layer: two norms, rope, the cache's write, the activation
_SAMPLING_PASSES = 6  # over float32 logits
_HANDED_ON = 2  # values of a token for each of its hidden state: the state and the residual
_REMEMBERED = 65536


@dataclass(frozen=True, slots=True)
class Serving:
    """How one replica runs a model: on `stages` times `ranks` devices (pipeline and tensor parallel), weights and cache
    kept in these dtypes."""

    hardware: Hardware
    ranks: int = 1
    weights: str | WeightTypes = "bf16"
    cache: str = "bf16"
    stages: int = 1

    @property
    def devices(self) -> int:
        return self.ranks * self.stages

    def crosses(self, stage: int) -> bool:
        """Whether the stage after this one is in another node."""
        return (stage + 1) % max(self.hardware.per_node // self.ranks, 1) == 0


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a step by what they went to. bubble: what a micro-batch waits for the pipeline's slowest stage."""

    gemm: float
    attention: float
    communication: float
    elementwise: float
    bubble: float = 0.0

    @property
    def seconds(self) -> float:
        return self.gemm + self.attention + self.communication + self.elementwise + self.bubble


@dataclass(frozen=True, slots=True)
class _Slice:
    """What the seconds of a stage follow from. hop: whether it hands on to the same node or to another."""

    layers: tuple[tuple[LayerSpec, int], ...]
    last: bool
    hop: str


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
        slices = [
            _Slice(
                tuple(Counter(stage.spec.layers).items()),
                stage.last,
                "" if stage.last else "node" if serving.crosses(index) else "link",
            )
            for index, stage in enumerate(cut(spec, serving.stages))
        ]
        self._decode = self._kernels.decode_of(serving.cache)
        # Most stages are alike: each is reckoned once, and found by its number.
        self._kinds = list(dict.fromkeys(slices))
        self._stages = [self._kinds.index(one) for one in slices]
        types = WeightTypes.of(serving.weights)
        self._attention_by, self._ffn_by, self._head_by, self._wide = (
            self._kernels.multiplier(hardware, dtype) for dtype in (types.attention, types.ffn, types.embedding, "bf16")
        )
        self._by_tokens: dict[tuple[int, int, int], tuple[float, float, float]] = {}

    def __call__(self, work: StepWork) -> float:
        return self.parts(work).seconds

    def parts(self, work: StepWork) -> Parts:
        """The step's seconds by what they went to. A pipeline has the work cut into as many micro-batches as it has
        stages (or requests, if they are fewer), which go round for ever."""
        if len(self._stages) == 1:
            return self._stage(0, work)
        micro = max(min(len(self._stages), work.requests), 1)
        stages = self.stages(work.shared(micro))
        total = Parts(*(sum(getattr(stage, name) for stage in stages) for name in _NAMES))
        turn = period([stage.seconds for stage in stages], micro)
        return replace(total, bubble=max(turn - total.seconds, 0.0))

    def stages(self, work: StepWork) -> list[Parts]:
        """What this work takes, as one micro-batch, in each stage of the pipeline, handing it on included."""
        known = [self._stage(kind, work) for kind in range(len(self._kinds))]
        return [known[kind] for kind in self._stages]

    def _stage(self, kind: int, work: StepWork) -> Parts:
        stage, key = self._kinds[kind], (kind, work.tokens, work.logit_rows)
        known = self._by_tokens.get(key)
        if known is None:
            if len(self._by_tokens) >= _REMEMBERED:
                self._by_tokens.clear()
            known = self._by_tokens[key] = self._of_tokens(stage, work.tokens, work.logit_rows)
        gemm, communication, elementwise = known
        attention = sum(count * self._attention(layer.attention, work) for layer, count in stage.layers)
        return Parts(gemm, attention, communication, elementwise)

    def _of_tokens(self, stage: _Slice, tokens: int, rows: int) -> tuple[float, float, float]:
        """What depends on the number of tokens alone."""
        hidden, ranks, hardware = self._spec.hidden, self._serving.ranks, self._serving.hardware
        bandwidth = hardware.bandwidth * self._attention_by.curve.memory
        gemm = elementwise = 0.0
        for layer, count in stage.layers:
            of_attention = _attention_matrices(layer.attention, hidden, ranks, tokens)
            of_ffn = _ffn_matrices(layer.mlp, hidden, ranks, tokens)
            gemm += count * sum(self._matrix(self._attention_by, *shape) for shape in of_attention)
            gemm += count * sum(self._matrix(self._ffn_by, *shape) for shape in of_ffn)
            traffic = tokens * _ACTIVATION * (_PASSES * hidden + 3 * _width(layer.mlp) / ranks)
            elementwise += count * (_LAUNCHES * _LAUNCH + traffic / bandwidth)
        if rows and stage.last:
            gemm += self._matrix(self._head_by, rows, self._spec.vocab_size / ranks, hidden, 1)
            elementwise += rows * self._spec.vocab_size * 4 * _SAMPLING_PASSES / bandwidth
        size = tokens * hidden * _ACTIVATION
        reduce = self._kernels.all_reduce.seconds(size, ranks, hardware.link)
        communication = 2 * sum(count for _, count in stage.layers) * reduce
        if stage.hop:
            communication += self._kernels.send.seconds(_HANDED_ON * size / ranks, hardware, stage.hop == "link")
        return gemm, communication, elementwise

    def _matrix(self, by: Multiplier, m: float, n: float, k: float, copies: float) -> float:
        """m rows in all pass so many copies of an n by k matrix, each its share."""
        return by.seconds(m / copies, n * copies, k, self._serving.hardware.bandwidth)

    def _attention(self, a: AttentionSpec, work: StepWork) -> float:
        """One layer's."""
        ranks, hardware = self._serving.ranks, self._serving.hardware
        per_token = _kept(a, ranks) * item_bytes(self._serving.cache)
        singles = work.requests - work.long_entries
        total = 0.0
        if work.prefill_pairs:
            chunk = max(work.tokens - singles, 1)
            each = chunk / max(work.long_entries, 1)
            length = work.prefill_pairs / chunk
            if a.window is not None:
                length = min(length, a.window)
            width = a.heads / ranks * (a.head_dim + a.v_head_dim)
            # Rows of one entry share what they read of its keys: few rows take the time of reading them.
            read = work.long_entries * (length + each / 2) * per_token
            total += self._kernels.prefill.seconds(
                chunk * length,
                length,
                width,
                self._wide.peak,
                read / (hardware.bandwidth * self._decode.memory),
            )
        if work.decode_context:
            context = work.decode_context / max(singles, 1)
            if a.window is not None:
                context = min(context, a.window)
            total += self._decode.seconds(singles * context * per_token, singles, hardware.bandwidth)
        return total


_NAMES = ("gemm", "attention", "communication", "elementwise")


def _kept(a: AttentionSpec, ranks: int) -> float:
    """Values of one token that each rank keeps of a layer: heads are cut, and repeated where ranks are more."""
    if a.latent is not None:
        return a.latent.kv_rank + a.latent.rope_dim
    return max(a.kv_heads / ranks, 1) * (a.head_dim + a.v_head_dim)


def _width(m: MlpSpec) -> int:
    """Hidden values of one token."""
    return m.hidden * (m.experts_per_token or 1) + m.shared_hidden


_Shapes = list[tuple[float, float, float, float]]
"""(rows, outputs, inputs, copies) of matrices on one rank."""


def _attention_matrices(a: AttentionSpec, hidden: int, ranks: int, tokens: int) -> _Shapes:
    shapes: _Shapes = []
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
    return shapes


def _ffn_matrices(m: MlpSpec, hidden: int, ranks: int, tokens: int) -> _Shapes:
    shapes: _Shapes = []
    into = 2 if m.gated else 1
    if m.experts:
        taken = m.experts * (1 - (1 - m.experts_per_token / m.experts) ** tokens)
        rows = tokens * m.experts_per_token
        shapes += [(rows, into * m.hidden / ranks, hidden, taken), (rows, hidden, m.hidden / ranks, taken)]
    dense = m.shared_hidden if m.experts else m.hidden
    if dense:
        shapes += [(tokens, into * dense / ranks, hidden, 1), (tokens, hidden, dense / ranks, 1)]
    return shapes

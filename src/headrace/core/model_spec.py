"""ModelSpec: a decoder as data. It describes attention (grouped-query, latent, windows, softcaps, sinks), feed-
forward (dense, mixture of experts), norms and rope of every family we mean to serve; lowering turns it into ops,
and refuses by name what the ops lack. Policy, simulator and planner read sizes from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding. dim: rotated leading dimensions of a head. kind "default" uses theta alone;
    the others name their scaling in `scaling` (the fields of the checkpoint's config, as sorted pairs).
    interleaved: pairs are (0,1),(2,3).. instead of (0,dim/2),(1,dim/2+1).. ."""

    theta: float
    dim: int
    kind: Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"] = "default"
    scaling: tuple[tuple[str, float | int | str | tuple[float, ...]], ...] = ()
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): widths of the compressed parts."""

    q_rank: int | None
    kv_rank: int
    rope_dim: int
    nope_dim: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One attention layer. scale multiplies q.k. window: keys seen, counting the query's own; None is all."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    rope: Rope | None
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    softcap: float | None = None
    sinks: bool = False
    latent: LatentSpec | None = None


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """One feed-forward layer. experts 0 is dense; otherwise experts_per_token of them run for each token."""

    hidden: int
    activation: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "silu"
    gated: bool = True
    bias: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_hidden: int = 0
    router: Literal["softmax", "sigmoid"] = "softmax"
    normalize_router: bool = True


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. norms "pre": before attention and MLP; "post": after them; "around": both."""

    attention: AttentionSpec
    mlp: MlpSpec
    norms: Literal["pre", "post", "around"] = "pre"


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose keys and values are kept alike, so that they share one block table: same kind, window and
    shapes. layers are indices into ModelSpec.layers, ascending; heads are KV heads (1 for latent). noted: its blocks
    say what was computed in them, as those of a draft model must, which lags behind."""

    kind: Literal["full", "window", "latent"]
    layers: tuple[int, ...]
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    noted: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole decoder. norm_offset is added to norm weights (1 for Gemma). embedding_scale multiplies embedded
    tokens, residual_scale each branch before it is added, logit_scale the logits; final_softcap bounds them."""

    family: str
    vocab_size: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    max_position: int
    tied_embeddings: bool
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    final_softcap: float | None = None
    head_bias: bool = False

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """Layers grouped by what they keep, in order of first appearance."""
        groups: dict[KVGroup, list[int]] = {}
        for index, layer in enumerate(self.layers):
            a = layer.attention
            if a.latent is not None:
                key = KVGroup("latent", (), 1, a.latent.kv_rank + a.latent.rope_dim, 0)
            else:
                kind: Literal["full", "window"] = "full" if a.window is None else "window"
                key = KVGroup(kind, (), a.kv_heads, a.head_dim, a.v_head_dim, a.window)
            groups.setdefault(key, []).append(index)
        return tuple(
            KVGroup(g.kind, tuple(layers), g.kv_heads, g.k_dim, g.v_dim, g.window) for g, layers in groups.items()
        )

    @property
    def num_parameters(self) -> int:
        """Parameters of all weights, each counted once (tied embeddings once, every expert)."""
        total = self.vocab_size * self.hidden * (1 if self.tied_embeddings else 2) + self.hidden
        total += self.vocab_size if self.head_bias else 0
        for layer in self.layers:
            total += _attention_parameters(layer.attention, self.hidden) + _mlp_parameters(layer.mlp, self.hidden)
            total += self.hidden * (4 if layer.norms == "around" else 2)
        return total

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes: of a mixture's experts only those it takes."""
        idle = 0
        for layer in self.layers:
            m = layer.mlp
            if m.experts:
                idle += (m.experts - m.experts_per_token) * _expert_parameters(m, self.hidden)
        return self.num_parameters - idle

    def weight_bytes(self, dtype: str | WeightTypes) -> int:
        """Bytes of all weights in these dtypes. Raises ConfigError for one that is not in ITEM_BYTES."""
        types = WeightTypes.of(dtype)
        outside = self.vocab_size * self.hidden * (1 if self.tied_embeddings else 2)
        ffn = sum(_mlp_parameters(layer.mlp, self.hidden) for layer in self.layers)
        attention = self.num_parameters - outside - ffn  # and norms
        parts = ((attention, types.attention), (ffn, types.ffn), (outside, types.embedding))
        return int(sum(count * item_bytes(of) for count, of in parts))

    def kv_bytes(self, tokens: int, dtype: str = "bf16", ranks: int = 1) -> int:
        """Bytes that a sequence of so many tokens keeps on each of its tensor-parallel ranks: a layer with a window
        keeps no more than that, and a head that several ranks need is kept by each. What a block layout adds (scales,
        alignment) is not in it."""
        total = 0.0
        for group in self.kv_groups:
            kept = tokens if group.window is None else min(tokens, group.window)
            total += kept * len(group.layers) * max(group.kv_heads / ranks, 1) * (group.k_dim + group.v_dim)
        return int(total * item_bytes(dtype))


ITEM_BYTES: dict[str, float] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.52, "fp4": 0.5625}
"""Bytes of one value, by dtype. The 4-bit ones with their scales: int4 (AWQ, GPTQ) 16 bits of scale and 4 of zero for
each 128 values, fp4 (NVFP4) 8 bits of scale for each 16."""


def item_bytes(dtype: str) -> float:
    """Bytes of one value. Raises ConfigError naming the dtypes that are known."""
    if dtype not in ITEM_BYTES:
        raise ConfigError(f"dtype must be one of {', '.join(ITEM_BYTES)}, got {dtype!r}")
    return ITEM_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class WeightTypes:
    """Dtypes of a model's weights by what they do. embedding: and the head."""

    embedding: str
    attention: str
    ffn: str

    @classmethod
    def of(cls, dtype: str | WeightTypes) -> WeightTypes:
        """One dtype for all layers. Checkpoints of 8 bits and fewer keep their embedding and head in 16."""
        if isinstance(dtype, WeightTypes):
            return dtype
        return cls(dtype if item_bytes(dtype) > item_bytes("bf16") else "bf16", dtype, dtype)

    def __str__(self) -> str:
        return f"embedding {self.embedding}, attention {self.attention}, ffn {self.ffn}"


def _attention_parameters(a: AttentionSpec, hidden: int) -> int:
    if a.latent is not None:
        c = a.latent
        q_width = a.heads * (c.nope_dim + c.rope_dim)
        q = hidden * q_width if c.q_rank is None else c.q_rank * (hidden + q_width + 1)
        kv = hidden * (c.kv_rank + c.rope_dim) + c.kv_rank + c.kv_rank * a.heads * (c.nope_dim + a.v_head_dim)
        return q + kv + a.heads * a.v_head_dim * hidden
    q_width, k_width, v_width = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.v_head_dim
    total = hidden * (q_width + k_width + v_width) + a.heads * a.v_head_dim * hidden
    total += (q_width + k_width + v_width) if a.qkv_bias else 0
    total += hidden if a.out_bias else 0
    total += {"none": 0, "head": 2 * a.head_dim, "full": q_width + k_width}[a.qk_norm]
    return total + (a.heads if a.sinks else 0)


def _mlp_parameters(m: MlpSpec, hidden: int) -> int:
    one = _expert_parameters(m, hidden)
    if m.experts == 0:
        return one
    return m.experts * one + hidden * m.experts + (3 if m.gated else 2) * hidden * m.shared_hidden


def _expert_parameters(m: MlpSpec, hidden: int) -> int:
    """Of one expert, or of a dense layer."""
    matrices = 3 if m.gated else 2
    return matrices * hidden * m.hidden + ((m.hidden * (matrices - 1) + hidden) if m.bias else 0)

"""What dense decoders of the Llama kind share: their sizes and rope, read from config.json or GGUF metadata. A
family adds what is its own.
"""

from __future__ import annotations

from typing import Any, Literal

from headrace.core.errors import ModelError
from headrace.core.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, Rope
from headrace.models.families.family import MAX_LAYERS, Fields

_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_ROPE_FIELDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def from_config(
    family: str,
    config: Fields,
    *,
    default_tied: bool,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    windows: tuple[int | None, ...] | None = None,
) -> ModelSpec:
    """ModelSpec of a config.json; windows has one entry per layer."""
    layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", hidden // heads if heads <= hidden else 1)
    activation = config.get("hidden_act")
    if activation not in _ACTIVATIONS:
        raise config.error("hidden_act", activation, f"one of {', '.join(_ACTIVATIONS)}")
    return _spec(
        family,
        config,
        vocab_size=config.integer("vocab_size"),
        hidden=hidden,
        windows=windows or (None,) * layers,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        rope=_config_rope(config, head_dim),
        mlp=MlpSpec(config.integer("intermediate_size"), _ACTIVATIONS[activation], bias=mlp_bias),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        max_position=config.integer("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings", default_tied),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )


def from_gguf(
    family: str, header: Fields, vocab_size: int, factors: tuple[float, ...], *, tied: bool, qkv_bias: bool = False
) -> ModelSpec:
    """ModelSpec of GGUF metadata. factors: divisors of the rotary frequencies, empty for none."""
    layers = header.integer("block_count", high=MAX_LAYERS)
    hidden, heads = header.integer("embedding_length"), header.integer("attention.head_count")
    head_dim = header.integer("attention.key_length", hidden // heads if heads <= hidden else 1)
    if header.integer("attention.value_length", head_dim) != head_dim:
        raise header.error("attention.value_length", header.get("attention.value_length"), f"{head_dim}, as keys have")
    if "expert_count" in header and header.get("expert_count") != 0:
        raise header.error("expert_count", header.get("expert_count"), "0: mixtures of experts are not supported")
    return _spec(
        family,
        header,
        vocab_size=vocab_size,
        hidden=hidden,
        windows=(None,) * layers,
        heads=heads,
        kv_heads=header.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        rope=_gguf_rope(header, head_dim, factors),
        mlp=MlpSpec(header.integer("feed_forward_length")),
        norm_eps=header.number("attention.layer_norm_rms_epsilon"),
        max_position=header.integer("context_length"),
        tied=tied,
        qkv_bias=qkv_bias,
        out_bias=False,
    )


def _spec(
    family: str,
    fields: Fields,
    *,
    vocab_size: int,
    hidden: int,
    windows: tuple[int | None, ...],
    heads: int,
    kv_heads: int,
    head_dim: int,
    rope: Rope,
    mlp: MlpSpec,
    norm_eps: float,
    max_position: int,
    tied: bool,
    qkv_bias: bool,
    out_bias: bool,
) -> ModelSpec:
    if heads % kv_heads:
        raise ModelError(f"{fields.path}: {heads} attention heads cannot share {kv_heads} KV heads evenly")
    if head_dim % 2 or not 2 <= rope.dim <= head_dim or rope.dim % 2:
        raise ModelError(f"{fields.path}: heads of {head_dim} with {rope.dim} rotary dimensions: both must be even")
    attention = {
        window: AttentionSpec(
            heads,
            kv_heads,
            head_dim,
            head_dim,
            head_dim**-0.5,
            rope,
            window=window,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
        )
        for window in windows
    }
    return ModelSpec(
        family=family,
        vocab_size=vocab_size,
        hidden=hidden,
        layers=tuple(LayerSpec(attention[window], mlp) for window in windows),
        norm_eps=norm_eps,
        max_position=max_position,
        tied_embeddings=tied,
    )


def _config_rope(config: Fields, head_dim: int) -> Rope:
    """Rope of a config.json, in the old writing (rope_theta, rope_scaling) and the new (rope_parameters)."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise config.error("rope_scaling", given, "an object")
    rope = Fields({f"rope.{key}": value for key, value in given.items()}, config.path, "rope.")
    kind = given.get("rope_type", given.get("type", "default"))
    theta = rope.number("rope_theta", config.number("rope_theta", 10000.0))
    if kind not in _ROPE_FIELDS:
        raise rope.error("rope_type", kind, f"one of {', '.join(_ROPE_FIELDS)}")
    if config.number("partial_rotary_factor", 1.0) != 1.0:
        raise config.error("partial_rotary_factor", config.get("partial_rotary_factor"), "1")
    scaling = tuple((name, rope.number(name)) for name in sorted(_ROPE_FIELDS[kind]))
    return Rope(theta, head_dim, kind, scaling)


def _gguf_rope(header: Fields, head_dim: int, factors: tuple[float, ...]) -> Rope:
    theta = header.number("rope.freq_base", 10000.0)
    dim = header.integer("rope.dimension_count", head_dim)
    kind: Any = header.get("rope.scaling.type") or "none"
    if kind not in ("none", "linear"):
        raise header.error("rope.scaling.type", kind, "none or linear")
    if kind == "linear" and not factors:
        return Rope(theta, dim, "linear", (("factor", header.number("rope.scaling.factor")),))
    if not factors:
        return Rope(theta, dim)
    if len(factors) != dim // 2 or min(factors) <= 0:
        raise ModelError(f"{header.path}: rope_freqs.weight must hold {dim // 2} positive factors")
    return Rope(theta, dim, "llama3", (("frequency_factors", factors),))

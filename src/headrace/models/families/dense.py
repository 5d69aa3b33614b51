"""What decoders of the Llama kind share: their sizes, read from config.json or GGUF metadata into the ModelSpec of a
plain Llama. A family starts from that and changes what is its own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from headrace.core.errors import ModelError
from headrace.core.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, Rope
from headrace.models.families.family import MAX_LAYERS, Fields, TensorFacts
from headrace.models.families.rope import config_rope, gguf_rope, longest_context

_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def from_config(
    family: str,
    config: Fields,
    *,
    default_tied: bool = False,
    activation: str = "hidden_act",
    theta: float = 10000.0,
    qkv_bias: bool = False,
    biases: bool = False,
) -> ModelSpec:
    """ModelSpec of a config.json. activation: the setting that names it. theta: rope's default. biases: whether
    attention_bias and mlp_bias are settings of the family."""
    attention_bias, mlp_bias = (biases and config.flag(f"{part}_bias", False) for part in ("attention", "mlp"))
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", hidden // heads if heads <= hidden else 1)
    if config.get(activation) not in _ACTIVATIONS:
        raise config.error(activation, config.get(activation), f"one of {', '.join(_ACTIVATIONS)}")
    max_position = config.integer("max_position_embeddings")
    rope = config_rope(config, head_dim, max_position, theta=theta)
    attention = AttentionSpec(
        heads,
        config.integer("num_key_value_heads", heads),
        head_dim,
        head_dim,
        head_dim**-0.5,
        rope,
        qkv_bias=qkv_bias or attention_bias,
        out_bias=attention_bias,
    )
    mlp = MlpSpec(config.integer("intermediate_size"), _ACTIVATIONS[config.get(activation)], bias=mlp_bias)
    check_heads(attention, config)
    return ModelSpec(
        family=family,
        vocab_size=config.integer("vocab_size"),
        hidden=hidden,
        layers=(LayerSpec(attention, mlp),) * config.integer("num_hidden_layers", high=MAX_LAYERS),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        max_position=longest_context(rope, max_position),
        tied_embeddings=config.flag("tie_word_embeddings", default_tied),
    )


def from_gguf(
    family: str,
    header: Fields,
    facts: TensorFacts,
    *,
    activation: Literal["silu", "gelu_tanh"] = "silu",
    mlp_width: str = "feed_forward_length",
    qkv_bias: bool = False,
    windows: bool = False,
) -> ModelSpec:
    """ModelSpec of GGUF metadata. mlp_width: the setting that holds the width of the feed-forward layers. windows:
    whether the caller sees to windows; else a file that has them is refused."""
    if header.get("attention.sliding_window") and not windows:
        size = header.get("attention.sliding_window")
        raise header.error("attention.sliding_window", size, f"absent: no {family} of GGUF is known to have windows")
    hidden, heads = header.integer("embedding_length"), header.integer("attention.head_count")
    head_dim = header.integer("attention.key_length", hidden // heads if heads <= hidden else 1)
    if header.integer("attention.value_length", head_dim) != head_dim:
        raise header.error("attention.value_length", header.get("attention.value_length"), f"{head_dim}, as keys have")
    max_position = header.integer("context_length")
    rope = gguf_rope(header, head_dim, facts)
    attention = AttentionSpec(
        heads,
        header.integer("attention.head_count_kv", heads),
        head_dim,
        head_dim,
        head_dim**-0.5,
        rope,
        qkv_bias=qkv_bias,
    )
    check_heads(attention, header)
    mlp = MlpSpec(header.integer(mlp_width), activation)
    return ModelSpec(
        family=family,
        vocab_size=facts.vocab_size,
        hidden=hidden,
        layers=(LayerSpec(attention, mlp),) * header.integer("block_count", high=MAX_LAYERS),
        norm_eps=header.number("attention.layer_norm_rms_epsilon"),
        max_position=longest_context(rope, max_position),
        tied_embeddings=facts.tied,
    )


def check_heads(attention: AttentionSpec, fields: Fields) -> None:
    """Raise ModelError if heads cannot share KV heads evenly or be rotated."""
    rope = attention.rope
    if attention.heads % attention.kv_heads:
        raise ModelError(
            f"{fields.path}: {attention.heads} attention heads cannot share {attention.kv_heads} KV heads evenly"
        )
    if attention.head_dim % 2 or (rope and (not 2 <= rope.dim <= attention.head_dim or rope.dim % 2)):
        raise ModelError(
            f"{fields.path}: heads of {attention.head_dim} with {rope.dim if rope else 0} rotary dimensions: "
            "both must be even"
        )


def with_attention(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """The spec with fields of every layer's attention changed."""
    return by_layer(spec, lambda i, layer: replace(layer, attention=replace(layer.attention, **changes)))


def with_mlp(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """The spec with fields of every layer's feed-forward changed."""
    return by_layer(spec, lambda i, layer: replace(layer, mlp=replace(layer.mlp, **changes)))


def with_norms(spec: ModelSpec, norms: Literal["pre", "post", "around"]) -> ModelSpec:
    return by_layer(spec, lambda i, layer: replace(layer, norms=norms))


def with_windows(spec: ModelSpec, windows: tuple[int | None, ...], local_rope: Rope | None = None) -> ModelSpec:
    """The spec with one window a layer, None for all; layers that have one use local_rope, where given. A window
    that spans every position is none."""

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        window = windows[i]
        attention = replace(
            layer.attention,
            window=None if window is None or window >= spec.max_position else window,
            rope=local_rope if local_rope is not None and window is not None else layer.attention.rope,
        )
        return replace(layer, attention=attention)

    return by_layer(spec, change)


def by_layer(spec: ModelSpec, change: Callable[[int, LayerSpec], LayerSpec]) -> ModelSpec:
    return replace(spec, layers=tuple(change(i, layer) for i, layer in enumerate(spec.layers)))


def config_window(config: Fields) -> int | None:
    """sliding_window, None where it is null or absent."""
    return config.integer("sliding_window") if "sliding_window" in config else None


def windows_by_type(config: Fields, default: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer: layer_types says which have it, or, where it is absent, default(layer)."""
    layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    window = config_window(config)
    kinds = config.get("layer_types")
    if kinds is None:
        return tuple(window if default(i) else None for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= {"full_attention", "sliding_attention"}:
        raise config.error("layer_types", kinds, f"a list of {layers} of full_attention, sliding_attention")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def gguf_windows(
    header: Fields, layers: int, default: Callable[[int], bool], window: int | None = None
) -> tuple[int | None, ...]:
    """The window of each layer: attention.sliding_window (where it is absent, `window`; 0 is none) in those layers that
    attention.sliding_window_pattern says: a list has true for them, a number n leaves out every n-th, and 0 none. Where
    it is absent, default(layer) says."""
    size, pattern = header.get("attention.sliding_window"), header.get("attention.sliding_window_pattern")
    if size != 0 or isinstance(size, bool):
        window = header.integer("attention.sliding_window") if size is not None else window
    else:
        window = None
    if isinstance(pattern, list) and len(pattern) == layers and {*map(repr, pattern)} <= {"True", "False", "0", "1"}:
        return tuple(window if local else None for local in pattern)
    if pattern is None:
        return tuple(window if default(i) else None for i in range(layers))
    if isinstance(pattern, bool) or not isinstance(pattern, int) or not 0 <= pattern <= MAX_LAYERS:
        expected = f"a number from 0 to {MAX_LAYERS}, or a list of {layers} of true, false"
        raise header.error("attention.sliding_window_pattern", pattern, expected)
    return tuple(window if pattern == 0 or (i + 1) % pattern else None for i in range(layers))

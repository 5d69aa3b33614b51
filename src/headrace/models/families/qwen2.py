"""Qwen2 and Qwen2.5, dense: Llama with biases on q, k and v, and, where switched on, windows in the upper layers.

Source: arXiv:2407.10671.
"""

from __future__ import annotations

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import MAX_LAYERS, Family, Fields


def _windows(config: Fields) -> tuple[int | None, ...]:
    """The first max_window_layers layers see everything; layer_types, where given, says it layer by layer."""
    layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    if not config.flag("use_sliding_window", False) or "sliding_window" not in config:
        return (None,) * layers
    window = config.integer("sliding_window")
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise config.error("max_window_layers", first, "an integer of 0 or more")
        return tuple(None if i < first else window for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= {"full_attention", "sliding_attention"}:
        raise config.error("layer_types", kinds, f"a list of {layers} of full_attention, sliding_attention")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _from_config(config: Fields) -> ModelSpec:
    return dense.from_config("qwen2", config, default_tied=False, qkv_bias=True, windows=_windows(config))


def _from_gguf(header: Fields, vocab_size: int, factors: tuple[float, ...], tied: bool) -> ModelSpec:
    return dense.from_gguf("qwen2", header, vocab_size, factors, tied=tied, qkv_bias=True)


QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    gguf="qwen2",
    from_config=_from_config,
    from_gguf=_from_gguf,
)

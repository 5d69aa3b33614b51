"""Qwen2 and Qwen2.5, dense: Llama with biases on q, k and v, and, where switched on, windows in the upper layers.

Source: arXiv:2407.10671.
"""

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Family, Fields, TensorFacts


def upper_windows(config: Fields, layers: int) -> tuple[int | None, ...]:
    """The first max_window_layers layers see everything; layer_types, where given, says it layer by layer."""
    if not config.flag("use_sliding_window", False) or "sliding_window" not in config:
        return (None,) * layers
    first = config.get("max_window_layers")
    if "layer_types" not in config and (isinstance(first, bool) or not isinstance(first, int) or first < 0):
        raise config.error("max_window_layers", first, "an integer of 0 or more")
    return dense.windows_by_type(config, lambda layer: layer >= first)


def _from_config(config: Fields) -> ModelSpec:
    spec = dense.from_config("qwen2", config, qkv_bias=True)
    return dense.with_windows(spec, upper_windows(config, len(spec.layers)))


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    return dense.from_gguf("qwen2", header, facts, qkv_bias=True)


QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    from_config=_from_config,
    gguf="qwen2",
    from_gguf=_from_gguf,
)

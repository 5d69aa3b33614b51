"""SmolLM3: Llama whose every fourth layer has no rope and, where windows are switched on, a window.

Source: https://huggingface.co/blog/smollm3, after arXiv:2501.18795.
"""

from dataclasses import replace

from headrace.core.model_spec import LayerSpec, ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Family, Fields, TensorFacts

_INTERVAL = 4


def _without_rope(spec: ModelSpec, has_rope: tuple[bool, ...]) -> ModelSpec:
    def change(i: int, layer: LayerSpec) -> LayerSpec:
        return layer if has_rope[i] else replace(layer, attention=replace(layer.attention, rope=None))

    return dense.by_layer(spec, change)


def _has_rope(config: Fields, layers: int) -> tuple[bool, ...]:
    """no_rope_layers, in spite of its name, has 1 for layers with rope."""
    given = config.get("no_rope_layers")
    if given is None:
        interval = config.integer("no_rope_layer_interval", _INTERVAL)
        return tuple((i + 1) % interval != 0 for i in range(layers))
    if not isinstance(given, list) or len(given) != layers or not {*map(repr, given)} <= {"0", "1"}:
        raise config.error("no_rope_layers", given, f"a list of {layers} of 0, 1")
    return tuple(value == 1 for value in given)


def _from_config(config: Fields) -> ModelSpec:
    spec = dense.from_config("smollm3", config, default_tied=True, theta=2_000_000.0, biases=True)
    has_rope = _has_rope(config, len(spec.layers))
    if config.flag("use_sliding_window", False):
        spec = dense.with_windows(spec, dense.windows_by_type(config, lambda layer: not has_rope[layer]))
    return _without_rope(spec, has_rope)


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    spec = dense.from_gguf("smollm3", header, facts)
    return _without_rope(spec, tuple((i + 1) % _INTERVAL != 0 for i in range(len(spec.layers))))


SMOLLM3 = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    from_config=_from_config,
    gguf="smollm3",
    from_gguf=_from_gguf,
    gguf_paired_rope=True,
)

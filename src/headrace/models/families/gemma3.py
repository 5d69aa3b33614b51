"""Gemma 3, text: five layers with a window and a rope of small base, then one that sees everything with a rope of
large, sometimes scaled base; norms of each query and key head instead of capped scores. Of the checkpoints that see
images too, the text part is served.

Source: arXiv:2503.19786.
"""

from headrace.core.model_spec import ModelSpec, Rope
from headrace.models.families import dense, gemma
from headrace.models.families.family import Family, Fields, TensorFacts
from headrace.models.families.rope import config_rope

_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0
_PATTERN = 6
_TEXT_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
"""What transformers takes for granted where text_config is silent, as it is in the published checkpoints."""


def _from_config(config: Fields) -> ModelSpec:
    spec = gemma.config_spec("gemma3", config, theta=_THETA)
    spec = dense.with_attention(spec, qk_norm="head")
    pattern = config.integer("sliding_window_pattern", _PATTERN)
    windows = dense.windows_by_type(config, lambda layer: (layer + 1) % pattern != 0)
    return dense.with_windows(spec, windows, _local_rope(config, spec.layers[0].attention.head_dim))


def _text_part(config: Fields) -> ModelSpec:
    return _from_config(config.section("text_config", _TEXT_DEFAULTS))


def _local_rope(config: Fields, head_dim: int) -> Rope:
    """Never scaled. In the old writing its base is a setting of its own."""
    parameters = config.get("rope_parameters")
    if isinstance(parameters, dict) and isinstance(parameters.get("sliding_attention"), dict):
        return config_rope(config, head_dim, 1, layer_type="sliding_attention", theta=_LOCAL_THETA)
    return Rope(config.number("rope_local_base_freq", _LOCAL_THETA), head_dim)


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    spec = gemma.gguf_spec("gemma3", header, facts, layers_of_27b=62, softcaps=(None, None))
    spec = dense.with_attention(spec, qk_norm="head")
    windows = dense.gguf_windows(header, len(spec.layers), lambda layer: (layer + 1) % _PATTERN != 0)
    theta = header.number("rope.freq_base_swa", _LOCAL_THETA)
    return dense.with_windows(spec, windows, Rope(theta, spec.layers[0].attention.head_dim))


GEMMA3 = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    from_config=_from_config,
    gguf="gemma3",
    from_gguf=_from_gguf,
    hub_names=gemma.GEMMA_NAMES,
)
GEMMA3_WITH_IMAGES = Family(
    name="gemma3",
    architectures=("Gemma3ForConditionalGeneration",),
    from_config=_text_part,
    hub_names=gemma.GEMMA_NAMES_BESIDE_IMAGES,
)

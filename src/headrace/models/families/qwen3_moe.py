"""Qwen3 with mixtures of experts: Qwen3's attention, and in each layer, or some, a mixture.

Source: arXiv:2505.09388.
"""

from dataclasses import replace

from headrace.core.model_spec import LayerSpec, MlpSpec, ModelSpec
from headrace.models.families import dense, experts
from headrace.models.families.family import Family, Fields, TensorFacts


def _from_config(config: Fields) -> ModelSpec:
    spec = dense.from_config("qwen3_moe", config, biases=True)
    spec = dense.with_attention(spec, qk_norm="head")
    if config.flag("use_sliding_window", False):
        spec = dense.with_windows(spec, (dense.config_window(config),) * len(spec.layers))
    normalize = config.flag("norm_topk_prob", False)
    count = "num_experts" if "num_experts" in config else "num_local_experts"
    width = config.integer("moe_intermediate_size")
    mixtures = experts.of_config(dense.with_mlp(spec, hidden=width), config, count=count, normalize=normalize)
    return _where_dense(spec, mixtures.layers[0].mlp, config)


def _where_dense(spec: ModelSpec, mixture: MlpSpec, config: Fields) -> ModelSpec:
    """The spec with a mixture in every decoder_sparse_step-th layer, save those in mlp_only_layers."""
    only = config.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(isinstance(i, int) for i in only):
        raise config.error("mlp_only_layers", only, "a list of layers")
    step = config.integer("decoder_sparse_step", 1)

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        return layer if i in only or (i + 1) % step else replace(layer, mlp=mixture)

    return dense.by_layer(spec, change)


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    spec = dense.from_gguf("qwen3_moe", header, facts, mlp_width="expert_feed_forward_length")
    return experts.of_gguf(dense.with_attention(spec, qk_norm="head"), header, normalize=True)


QWEN3_MOE = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    from_config=_from_config,
    gguf="qwen3moe",
    from_gguf=_from_gguf,
)

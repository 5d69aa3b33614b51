"""OLMoE: a mixture of experts in every layer, whose weights are not normalized, and a norm over all query heads
together, and all key heads.

Source: arXiv:2409.02060.
"""

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense, experts
from headrace.models.families.family import Family, Fields, TensorFacts


def _from_config(config: Fields) -> ModelSpec:
    if "clip_qkv" in config:
        raise config.error("clip_qkv", config.get("clip_qkv"), "null: no op clips queries, keys and values")
    spec = dense.from_config("olmoe", config, biases=True)
    spec = dense.with_attention(spec, qk_norm="full")
    return experts.of_config(spec, config, count="num_experts", normalize=config.flag("norm_topk_prob", False))


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    if "attention.clamp_kqv" in header:
        raise header.error("attention.clamp_kqv", header.get("attention.clamp_kqv"), "absent: no op clips them")
    spec = dense.with_attention(dense.from_gguf("olmoe", header, facts), qk_norm="full")
    return experts.of_gguf(spec, header, normalize=False)


OLMOE = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    from_config=_from_config,
    gguf="olmoe",
    from_gguf=_from_gguf,
)

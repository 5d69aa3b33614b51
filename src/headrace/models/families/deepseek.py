"""DeepSeek-V2 and V3: described, so that sizes can be planned with, and refused at load by what no op provides yet:
multi-head latent attention first of all.

Source: arXiv:2405.04434, arXiv:2412.19437.
"""

from dataclasses import replace

from headrace.core.model_spec import AttentionSpec, LatentSpec, LayerSpec, MlpSpec, ModelSpec
from headrace.models.families import dense
from headrace.models.families.experts import MAX_EXPERTS
from headrace.models.families.family import MAX_LAYERS, Family, Fields, TensorFacts
from headrace.models.families.rope import config_rope, gguf_rope, longest_context

_SOFTMAX, _SIGMOID = 1, 2  # expert_gating_func of GGUF


def _attention(config: Fields) -> AttentionSpec:
    heads = config.integer("num_attention_heads")
    latent = LatentSpec(
        q_rank=config.integer("q_lora_rank") if "q_lora_rank" in config else None,
        kv_rank=config.integer("kv_lora_rank"),
        rope_dim=config.integer("qk_rope_head_dim"),
        nope_dim=config.integer("qk_nope_head_dim"),
    )
    head_dim = latent.nope_dim + latent.rope_dim
    rope = config_rope(config, latent.rope_dim, config.integer("max_position_embeddings"))
    return AttentionSpec(
        heads,
        heads,
        head_dim,
        config.integer("v_head_dim"),
        head_dim**-0.5,
        replace(rope, interleaved=True),
        latent=latent,
    )


def _from_config(family: str, config: Fields) -> ModelSpec:
    attention = _attention(config)
    layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    mlp = MlpSpec(config.integer("intermediate_size"))
    experts = config.integer("n_routed_experts", high=MAX_EXPERTS)
    width = config.integer("moe_intermediate_size")
    mixture = MlpSpec(
        width,
        experts=experts,
        experts_per_token=config.integer("num_experts_per_tok", high=experts),
        shared_hidden=width * config.integer("n_shared_experts") if "n_shared_experts" in config else 0,
        router="sigmoid" if family == "deepseek_v3" else "softmax",
        normalize_router=config.flag("norm_topk_prob", family == "deepseek_v3"),
    )
    first = config.get("first_k_dense_replace") or 0
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise config.error("first_k_dense_replace", first, "an integer of 0 or more")
    assert attention.rope is not None
    spec = ModelSpec(
        family=family,
        vocab_size=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        layers=(LayerSpec(attention, mlp),) * layers,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        max_position=longest_context(attention.rope, config.integer("max_position_embeddings")),
        tied_embeddings=config.flag("tie_word_embeddings", False),
    )
    return dense.by_layer(spec, lambda i, layer: layer if i < first else replace(layer, mlp=mixture))


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    """Both generations are of architecture deepseek2, told apart by how they route. Later files keep keys compressed,
    and give the widths of whole ones by other names."""
    rope_dim = header.integer("rope.dimension_count")
    head_dim = header.integer("attention.key_length_mla", header.integer("attention.key_length"))
    if head_dim <= rope_dim:
        raise header.error("attention.key_length", head_dim, f"more than the {rope_dim} rotary dimensions")
    latent = LatentSpec(
        q_rank=header.integer("attention.q_lora_rank") if "attention.q_lora_rank" in header else None,
        kv_rank=header.integer("attention.kv_lora_rank"),
        rope_dim=rope_dim,
        nope_dim=head_dim - rope_dim,
    )
    heads = header.integer("attention.head_count")
    value_dim = header.integer("attention.value_length_mla", header.integer("attention.value_length"))
    rope = replace(gguf_rope(header, rope_dim, facts), interleaved=True)
    attention = AttentionSpec(heads, heads, head_dim, value_dim, head_dim**-0.5, rope, latent=latent)
    routing = header.integer("expert_gating_func", _SOFTMAX)
    if routing not in (_SOFTMAX, _SIGMOID):
        raise header.error("expert_gating_func", routing, f"{_SOFTMAX} (softmax) or {_SIGMOID} (sigmoid)")
    width, experts = header.integer("expert_feed_forward_length"), header.integer("expert_count", high=MAX_EXPERTS)
    mixture = MlpSpec(
        width,
        experts=experts,
        experts_per_token=header.integer("expert_used_count", high=experts),
        shared_hidden=width * header.integer("expert_shared_count") if header.get("expert_shared_count") else 0,
        router="sigmoid" if routing == _SIGMOID else "softmax",
        normalize_router=header.flag("expert_weights_norm", False),
    )
    layers = header.integer("block_count", high=MAX_LAYERS)
    first = header.integer("leading_dense_block_count") if header.get("leading_dense_block_count") else 0
    mlp = MlpSpec(header.integer("feed_forward_length"))
    spec = ModelSpec(
        family="deepseek_v3" if routing == _SIGMOID else "deepseek_v2",
        vocab_size=facts.vocab_size,
        hidden=header.integer("embedding_length"),
        layers=(LayerSpec(attention, mlp),) * layers,
        norm_eps=header.number("attention.layer_norm_rms_epsilon"),
        max_position=longest_context(rope, header.integer("context_length")),
        tied_embeddings=facts.tied,
    )
    return dense.by_layer(spec, lambda i, layer: layer if i < first else replace(layer, mlp=mixture))


DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    from_config=lambda config: _from_config("deepseek_v2", config),
    gguf="deepseek2",
    from_gguf=_from_gguf,
)
DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    from_config=lambda config: _from_config("deepseek_v3", config),
)

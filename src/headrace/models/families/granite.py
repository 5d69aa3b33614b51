"""Granite 3, dense: Llama with multipliers for embeddings, attention scores and branches, and a divisor for logits.

Source: the models' cards; the multipliers follow arXiv:2203.03466.
"""

from dataclasses import replace

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Family, Fields, TensorFacts


def _from_config(config: Fields) -> ModelSpec:
    spec = dense.from_config("granite", config, biases=True)
    return replace(
        dense.with_attention(spec, scale=config.number("attention_multiplier", 1.0)),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1 / config.number("logits_scaling", 1.0),
    )


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    spec = dense.from_gguf("granite", header, facts)
    usual = spec.layers[0].attention.scale
    return replace(
        dense.with_attention(spec, scale=header.number("attention.scale", usual)),
        embedding_scale=header.number("embedding_scale", 1.0),
        residual_scale=header.number("residual_scale", 1.0),
        logit_scale=1 / header.number("logit_scale", 1.0),
    )


GRANITE = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    from_config=_from_config,
    gguf="granite",
    from_gguf=_from_gguf,
    gguf_paired_rope=True,
)

"""What Gemma 2 and 3 share: norms around each branch, norm weights stored less one, embeddings scaled by the root of
their width, attention scaled by a setting of its own, softcaps, and layers that alternate between a window and all.

In GGUF files norm weights are stored whole, and the attention scale is known by the size of the model. The root is not
rounded to bfloat16, as transformers does when it computes in that type.
"""

import math
from dataclasses import asdict, replace
from typing import Any

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import HUB_NAMES, Fields, TensorFacts

Caps = tuple[float | None, float | None]

GEMMA_NAMES = replace(HUB_NAMES, mlp_norm="model.layers.{i}.pre_feedforward_layernorm.weight")
_BESIDE: dict[str, Any] = {
    field: f"language_model.{name}" for field, name in asdict(GEMMA_NAMES).items() if isinstance(name, str)
}
GEMMA_NAMES_BESIDE_IMAGES = replace(GEMMA_NAMES, **_BESIDE, unreached=("vision_tower.", "multi_modal_projector."))


def config_spec(family: str, config: Fields, *, theta: float) -> ModelSpec:
    if config.flag("use_bidirectional_attention", False):
        raise config.error("use_bidirectional_attention", True, "false: only causal decoders can be served")
    spec = dense.from_config(
        family,
        config,
        default_tied=True,
        activation="hidden_activation" if "hidden_activation" in config else "hidden_act",
        theta=theta,
        biases=True,
    )
    scale = config.number("query_pre_attn_scalar", 256) ** -0.5
    spec = dense.with_attention(spec, scale=scale, softcap=config.optional_number("attn_logit_softcapping"))
    return replace(_scaled(spec, config.optional_number("final_logit_softcapping")), norm_offset=1.0)


def gguf_spec(family: str, header: Fields, facts: TensorFacts, *, layers_of_27b: int, softcaps: Caps) -> ModelSpec:
    """The largest model of a generation scales attention by hidden / heads, the others by the head's size.
    softcaps: of scores and logits, where the file has none."""
    spec = dense.from_gguf(family, header, facts, activation="gelu_tanh", windows=True)
    attention = spec.layers[0].attention
    size = spec.hidden / attention.heads if len(spec.layers) == layers_of_27b else attention.head_dim
    scores, logits = (
        header.number(name) if name in header else default
        for name, default in zip(("attn_logit_softcapping", "final_logit_softcapping"), softcaps, strict=True)
    )
    return _scaled(dense.with_attention(spec, scale=size**-0.5, softcap=scores), logits)


def _scaled(spec: ModelSpec, final_softcap: float | None) -> ModelSpec:
    return replace(
        dense.with_norms(spec, "around"), embedding_scale=math.sqrt(spec.hidden), final_softcap=final_softcap
    )

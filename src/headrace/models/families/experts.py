"""Mixtures of experts: how config.json and GGUF metadata give the number of experts and how many of them a token
takes. The layers' width is already that of one expert.
"""

from __future__ import annotations

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Fields

MAX_EXPERTS = 4096


def of_config(spec: ModelSpec, config: Fields, *, count: str, normalize: bool) -> ModelSpec:
    """Every layer a mixture. count: the setting that holds the number of experts. normalize: whether the weights of
    the experts taken are divided by their sum."""
    return _mixture(spec, config, count, "num_experts_per_tok", normalize=normalize)


def of_gguf(spec: ModelSpec, header: Fields, *, normalize: bool) -> ModelSpec:
    return _mixture(spec, header, "expert_count", "expert_used_count", normalize=normalize)


def _mixture(spec: ModelSpec, fields: Fields, count: str, used: str, *, normalize: bool) -> ModelSpec:
    experts = fields.integer(count, high=MAX_EXPERTS)
    taken = fields.integer(used, high=experts)
    return dense.with_mlp(spec, experts=experts, experts_per_token=taken, normalize_router=normalize)

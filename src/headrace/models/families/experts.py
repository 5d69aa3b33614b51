"""Mixtures of experts: how config.json and GGUF metadata give the number of experts and how many of them a token
takes. The layers' width is already that of one expert.
"""

from collections.abc import Collection
from dataclasses import replace

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Fields, WeightNames

MAX_EXPERTS = 4096


def gguf_expert_names(names: WeightNames, present: Collection[str]) -> WeightNames:
    """Early files of Mixtral have a tensor for each expert where later ones have one for all."""
    if "blk.0.ffn_gate.0.weight" not in present:
        return names
    return replace(
        names,
        expert_gate="blk.{i}.ffn_gate.{e}.weight",
        expert_up="blk.{i}.ffn_up.{e}.weight",
        expert_down="blk.{i}.ffn_down.{e}.weight",
    )


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

"""Mixtral: Mistral with a mixture of experts in every layer. Its GGUF files are of architecture llama.

Source: arXiv:2401.04088.
"""

from dataclasses import replace

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense, experts
from headrace.models.families.family import HUB_NAMES, Family, Fields


def _from_config(config: Fields) -> ModelSpec:
    spec = dense.from_config("mixtral", config, theta=1_000_000.0)
    spec = dense.with_windows(spec, (dense.config_window(config),) * len(spec.layers))
    return experts.of_config(spec, config, count="num_local_experts", normalize=True)


_EXPERT = "model.layers.{i}.block_sparse_moe.experts.{e}"

MIXTRAL = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    from_config=_from_config,
    hub_names=replace(
        HUB_NAMES,
        router="model.layers.{i}.block_sparse_moe.gate.weight",
        expert_gate=f"{_EXPERT}.w1.weight",
        expert_up=f"{_EXPERT}.w3.weight",
        expert_down=f"{_EXPERT}.w2.weight",
    ),
)

"""Phi-3, Phi-3.5 and Phi-4, text: Llama with q, k and v in one tensor of the checkpoint, as are gate and up, rope over
a part of each head in some, and, in the long-context ones, rope factors of its own for long sequences.

Source: arXiv:2404.14219, arXiv:2412.08905.
"""

from dataclasses import replace

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import GGUF_NAMES, HUB_NAMES, Family, Fields, TensorFacts


def _from_config(config: Fields) -> ModelSpec:
    spec = dense.from_config("phi3", config)
    return dense.with_windows(spec, (dense.config_window(config),) * len(spec.layers))


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    spec = dense.from_gguf("phi3", header, facts, windows=True)
    return dense.with_windows(spec, dense.gguf_windows(header, len(spec.layers), lambda layer: True))


PHI3 = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    from_config=_from_config,
    gguf="phi3",
    from_gguf=_from_gguf,
    hub_names=replace(
        HUB_NAMES,
        qkv="model.layers.{i}.self_attn.qkv_proj.weight",
        gate_up="model.layers.{i}.mlp.gate_up_proj.weight",
    ),
    gguf_names=replace(GGUF_NAMES, qkv="blk.{i}.attn_qkv.weight", gate_up="blk.{i}.ffn_up.weight"),
)

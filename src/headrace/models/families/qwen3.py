"""Qwen3, dense: Llama with a norm of each query and key head, and, where switched on, windows in the upper layers.

Source: arXiv:2505.09388.
"""

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Family, Fields, TensorFacts
from headrace.models.families.qwen2 import upper_windows


def _from_config(config: Fields) -> ModelSpec:
    spec = dense.from_config("qwen3", config, biases=True)
    spec = dense.with_attention(spec, qk_norm="head")
    return dense.with_windows(spec, upper_windows(config, len(spec.layers)))


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    return dense.with_attention(dense.from_gguf("qwen3", header, facts), qk_norm="head")


QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    from_config=_from_config,
    gguf="qwen3",
    from_gguf=_from_gguf,
)

"""Llama (1 to 3.3), and what is built exactly like it: SmolLM, SmolLM2, TinyLlama, Vicuna, Yi.

Source: arXiv:2302.13971; rope scaling of 3.1 on: arXiv:2407.21783, section 3.2.
"""

from __future__ import annotations

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Family, Fields


def _from_config(config: Fields) -> ModelSpec:
    bias = config.flag("attention_bias", False)
    return dense.from_config(
        "llama",
        config,
        default_tied=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )


def _from_gguf(header: Fields, vocab_size: int, factors: tuple[float, ...], tied: bool) -> ModelSpec:
    return dense.from_gguf("llama", header, vocab_size, factors, tied=tied)


LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    gguf="llama",
    from_config=_from_config,
    from_gguf=_from_gguf,
    gguf_paired_rope=True,
)

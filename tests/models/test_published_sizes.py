"""The settings of published checkpoints, as far as they decide sizes, give the numbers of parameters that were
published with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.models.families.family import Fields
from headrace.models.families.registry import family_of_config

Settings = dict[str, Any]


def sizes(layers: int, hidden: int, mlp: int, heads: int, kv_heads: int, vocabulary: int, **others: Any) -> Settings:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        **others,
    }


GEMMA = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh"}
PUBLISHED: dict[str, tuple[str, Settings, int]] = {
    "Llama-3.2-1B": (
        "LlamaForCausalLM",
        sizes(16, 2048, 8192, 32, 8, 128256, head_dim=64, tie_word_embeddings=True),
        1_235_814_400,
    ),
    "Mistral-7B-v0.1": ("MistralForCausalLM", sizes(32, 4096, 14336, 32, 8, 32000), 7_241_732_096),
    "Qwen2.5-0.5B": ("Qwen2ForCausalLM", sizes(24, 896, 4864, 14, 2, 151936, tie_word_embeddings=True), 494_032_768),
    "Qwen3-0.6B": (
        "Qwen3ForCausalLM",
        sizes(28, 1024, 3072, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
        596_049_920,
    ),
    "gemma-2-2b": ("Gemma2ForCausalLM", sizes(26, 2304, 9216, 8, 4, 256000, **GEMMA), 2_614_341_888),
    "gemma-3-270m": ("Gemma3ForCausalLM", sizes(18, 640, 2048, 4, 1, 262144, **GEMMA), 268_098_176),
    "Phi-3-mini-4k": ("Phi3ForCausalLM", sizes(32, 3072, 8192, 32, 32, 32064), 3_821_079_552),
    "OLMo-2-1124-7B": ("Olmo2ForCausalLM", sizes(32, 4096, 11008, 32, 32, 100352), 7_298_617_344),
    "SmolLM3-3B": ("SmolLM3ForCausalLM", sizes(36, 2048, 11008, 16, 4, 128256), 3_075_098_624),
    "Mixtral-8x7B": (
        "MixtralForCausalLM",
        sizes(32, 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
    ),
    "Qwen3-30B-A3B": (
        "Qwen3MoeForCausalLM",
        sizes(
            48,
            2048,
            6144,
            32,
            4,
            151936,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
        ),
        30_532_122_624,
    ),
    "OLMoE-1B-7B": (
        "OlmoeForCausalLM",
        sizes(16, 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8),
        6_919_161_856,
    ),
    "DeepSeek-V2-Lite": (
        "DeepseekV2ForCausalLM",
        sizes(
            27,
            2048,
            10944,
            16,
            16,
            102400,
            kv_lora_rank=512,
            q_lora_rank=None,
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            v_head_dim=128,
            moe_intermediate_size=1408,
            n_routed_experts=64,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
        ),
        15_706_484_224,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_checkpoints(name: str) -> None:
    architecture, settings, parameters = PUBLISHED[name]
    path = Path("config.json")
    spec = family_of_config([architecture], path).from_config(Fields(settings, path))
    assert spec.num_parameters == parameters

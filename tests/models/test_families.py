"""Every family against transformers: a small random checkpoint of each kind gives its log-probabilities, on the CPU
kernels in float mode. Windows are shorter than the sequence, scaled ropes reach beyond their original context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.models.test_loader import change_config
from tests.models_for_tests import make_checkpoint, program_log_probabilities, reference_log_probabilities

from headrace.core.errors import ModelError
from headrace.models.families.registry import FAMILIES, family_of_config
from headrace.models.loader import load_model
from headrace.models.lowering import lower
from headrace.ops.cpu import CpuProgram
from headrace.ops.program import Program

POSITIONS = 75
TOKENS = np.random.default_rng(0).integers(3, 320, POSITIONS).astype(np.int32)
TOLERANCE = 1e-3

LOCAL_AND_GLOBAL = {"sliding_window": 20, "num_hidden_layers": 3}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.01 * i for i in range(8)],
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
}
EXPERTS = {"num_experts_per_tok": 2}

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama, dynamic rope": {
        "kind": "llama",
        "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama, yarn": {"kind": "llama", "max_position_embeddings": 128, "rope_parameters": YARN},
    "llama, yarn of a longer original": {
        "kind": "llama",
        "rope_parameters": {**YARN, "factor": 2.0, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3},
    },
    "mistral": {"kind": "mistral", "sliding_window": 20},
    "mistral, no window": {"kind": "mistral", "sliding_window": None, "head_dim": 20},
    "qwen3": {"kind": "qwen3", "head_dim": 20},
    "qwen3, tied, biases, windows": {
        "kind": "qwen3",
        "head_dim": 16,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "use_sliding_window": True,
        "max_window_layers": 1,
        "sliding_window": 20,
    },
    "gemma2": {"kind": "gemma2", "head_dim": 24, "query_pre_attn_scalar": 20, **LOCAL_AND_GLOBAL},
    "gemma2, untied, no caps": {
        "kind": "gemma2",
        "head_dim": 16,
        "tie_word_embeddings": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        **LOCAL_AND_GLOBAL,
    },
    "gemma3": {
        "kind": "gemma3",
        "head_dim": 24,
        "sharpness": 1.0,  # more, and float32 itself differs from float64 by the tolerance
        "query_pre_attn_scalar": 20,
        **LOCAL_AND_GLOBAL,
        "num_hidden_layers": 7,
    },
    "gemma3, scaled global rope": {
        "kind": "gemma3",
        "head_dim": 16,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
        **LOCAL_AND_GLOBAL,
    },
    "phi3, window": {"kind": "phi3", "sliding_window": 20},
    "phi3, long": {
        "kind": "phi3",
        "max_position_embeddings": 128,
        "original_max_position_embeddings": 32,
        "rope_parameters": LONGROPE,
    },
    "phi3, short of its original context": {
        "kind": "phi3",
        "original_max_position_embeddings": 100,
        "rope_parameters": LONGROPE,
    },
    "phi4, partial rotary": {"kind": "phi3", "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}},
    "olmo2": {"kind": "olmo2"},
    "olmo2, biases": {"kind": "olmo2", "attention_bias": True, "tie_word_embeddings": True},
    "granite": {
        "kind": "granite",
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.3,
        "logits_scaling": 3.0,
    },
    "granite, biases": {"kind": "granite", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "smollm3": {"kind": "smollm3", "num_hidden_layers": 4},
    "smollm3, windows": {
        "kind": "smollm3",
        "num_hidden_layers": 3,
        "no_rope_layers": [0, 1, 0],
        "use_sliding_window": True,
        "sliding_window": 20,
    },
    "mixtral": {"kind": "mixtral", "num_local_experts": 4, "sliding_window": 20, **EXPERTS},
    "qwen3_moe": {
        "kind": "qwen3_moe",
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "head_dim": 20,
        "num_experts_per_tok": 3,
    },
    "qwen3_moe, normalized, some layers dense": {
        "kind": "qwen3_moe",
        "num_hidden_layers": 3,
        "num_experts": 4,
        "moe_intermediate_size": 48,
        "mlp_only_layers": [1],
        "norm_topk_prob": True,
        "head_dim": 16,
        **EXPERTS,
    },
    "olmoe": {"kind": "olmoe", "num_experts": 4, **EXPERTS},
}


def program_of(path: Path, **options: Any) -> Program:
    model = load_model(path)
    settings: dict[str, Any] = {"quantization": "none", "kv_dtype": "fp32", "block_size": 16, **options}
    return lower(model.spec, model.weights, max_positions=POSITIONS, **settings)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_gives_the_log_probabilities_of_transformers(tmp_path: Path, name: str) -> None:
    model = make_checkpoint(tmp_path, **CHECKPOINTS[name])
    expected = reference_log_probabilities(model, TOKENS)
    actual = program_log_probabilities(program_of(tmp_path), TOKENS, chunk=31, provider=CpuProgram)
    assert np.abs(actual - expected).max() <= TOLERANCE
    assert load_model(tmp_path).spec.num_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["mistral", "qwen3", "gemma2", "gemma3", "phi3, long", "olmo2", "granite", "smollm3"])
def test_attention_of_the_test_models_has_peaks(tmp_path: Path, name: str) -> None:
    """Flat attention would hide a wrong rope, norm or mask: the test above rests on this."""
    model = make_checkpoint(tmp_path, **CHECKPOINTS[name], attn_implementation="eager")
    with torch.no_grad():
        attention = model(torch.from_numpy(TOKENS.astype(np.int64))[None], output_attentions=True).attentions
    peaks = torch.cat([layer[0, :, POSITIONS // 2 :].max(-1).values.flatten() for layer in attention])
    assert peaks.median() > 10 / POSITIONS


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gemma3", "olmo2", "mixtral", "olmoe"])
def test_the_reference_agrees_too(tmp_path: Path, name: str) -> None:
    model = make_checkpoint(tmp_path, **CHECKPOINTS[name])
    expected = reference_log_probabilities(model, TOKENS)
    assert np.abs(program_log_probabilities(program_of(tmp_path), TOKENS) - expected).max() <= TOLERANCE


def test_the_text_part_of_a_model_of_images_is_served(tmp_path: Path) -> None:
    text = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 20,
        "query_pre_attn_scalar": 16,
        "initializer_range": 0.15,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    torch.manual_seed(0)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    expected = reference_log_probabilities(model, TOKENS)
    change_config(tmp_path, text_config={**text, "layer_types": None})  # as published: little more than sizes
    actual = program_log_probabilities(program_of(tmp_path), TOKENS, provider=CpuProgram)
    assert np.abs(actual - expected).max() <= TOLERANCE


def test_every_family_is_tested() -> None:
    tested = {settings["kind"] for settings in CHECKPOINTS.values()} | {"llama", "qwen2"}
    assert {family.name for family in FAMILIES} == tested


DEEPSEEK = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("config_class", "model_class", "lacks"),
    [
        (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM, "multi-head latent attention, which"),
        (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM, "multi-head latent attention, which"),
    ],
)
def test_latent_attention_is_described_and_refused_by_name(
    tmp_path: Path, config_class: Any, model_class: Any, lacks: str
) -> None:
    model = model_class(config_class(**DEEPSEEK))
    model.save_pretrained(tmp_path)
    spec = load_model(tmp_path).spec
    assert spec.num_parameters == sum(p.numel() for p in model.parameters())
    assert [(g.kind, g.k_dim) for g in spec.kv_groups] == [("latent", 40)]
    with pytest.raises(ModelError, match=f"layer 0 needs {lacks} no op provides"):
        program_of(tmp_path)


def test_more_experts_than_tensors_are_refused_before_they_are_listed(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, **CHECKPOINTS["olmoe"])
    change_config(tmp_path, num_experts=4096, num_local_experts=4096, num_hidden_layers=4096)
    with pytest.raises(ModelError, match="olmoe needs one for each of 16777216 experts, but there are 45 tensors"):
        program_of(tmp_path)


def test_an_unknown_architecture_lists_the_supported_ones_and_the_nearest() -> None:
    with pytest.raises(
        ModelError, match=r"'Gemma3Model' is not supported; supported are .*OlmoeForCausalLM.*nearest is Gemma"
    ):
        family_of_config(["Gemma3Model"], Path("config.json"))

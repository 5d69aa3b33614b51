"""Every family that GGUF has an architecture for, written as GGUF, gives the log-probabilities of transformers, on the
CPU kernels in float mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gguf_models import ARCHITECTURES, write_family_gguf
from tests.models.test_families import CHECKPOINTS, LOCAL_AND_GLOBAL, TOKENS, TOLERANCE, YARN, program_of
from tests.models_for_tests import make_checkpoint, program_log_probabilities, reference_log_probabilities

from headrace.models.families.registry import FAMILIES
from headrace.ops.cpu import CpuProgram

SAME_AS_HUB = (
    "mistral",
    "mistral, no window",
    "qwen3",
    "phi3, window",
    "phi3, long",
    "phi3, short of its original context",
    "phi4, partial rotary",
    "olmo2",
    "granite",
    "smollm3",
    "mixtral",
    "olmoe",
)

# What GGUF has no setting for is what its readers take for granted: the attention scale of Gemma, one head's size;
# the windows of its layers by their order; normalized routing of Qwen3-MoE.
OTHERS: dict[str, dict[str, Any]] = {
    "qwen2, yarn": {"kind": "qwen2", "max_position_embeddings": 128, "rope_parameters": YARN},
    "gemma2": {"kind": "gemma2", "head_dim": 24, "query_pre_attn_scalar": 24, **LOCAL_AND_GLOBAL},
    "gemma3": {
        "kind": "gemma3",
        "head_dim": 24,
        "sharpness": 1.0,
        "query_pre_attn_scalar": 24,
        **LOCAL_AND_GLOBAL,
        "num_hidden_layers": 7,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "qwen3_moe": {
        "kind": "qwen3_moe",
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "head_dim": 20,
    },
}
WRITTEN = {**{name: CHECKPOINTS[name] for name in SAME_AS_HUB}, **OTHERS}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_gguf_file_gives_the_log_probabilities_of_transformers(tmp_path: Path, name: str) -> None:
    model = make_checkpoint(tmp_path, **WRITTEN[name])
    expected = reference_log_probabilities(model, TOKENS)
    path = tmp_path / "model.gguf"
    write_family_gguf(path, model)
    actual = program_log_probabilities(program_of(path), TOKENS, chunk=31, provider=CpuProgram)
    assert np.abs(actual - expected).max() <= TOLERANCE


def test_every_architecture_is_written() -> None:
    written = {settings["kind"] for settings in WRITTEN.values()}
    assert {ARCHITECTURES.get(kind, kind.removesuffix("_text")) for kind in written} | {"llama"} == {
        family.gguf for family in FAMILIES if family.gguf is not None
    }

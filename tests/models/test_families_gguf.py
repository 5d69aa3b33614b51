"""Every family that GGUF has an architecture for, written as GGUF, gives the log-probabilities of transformers, on the
CPU kernels in float mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.gguf_models import ARCHITECTURES, write_family_gguf
from tests.models.test_families import CHECKPOINTS, LOCAL_AND_GLOBAL, TOKENS, TOLERANCE, YARN, program_of
from tests.models_for_tests import make_checkpoint, program_log_probabilities, reference_log_probabilities

from headrace.core.errors import ModelError
from headrace.models.families.registry import FAMILIES
from headrace.models.loader import load_model
from headrace.models.lowering import check_supported
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


def test_early_files_have_a_tensor_for_each_expert(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, **CHECKPOINTS["mixtral"])
    for name, apart in (("late", False), ("early", True)):
        write_family_gguf(tmp_path / f"{name}.gguf", model, experts_apart=apart)
    early, late = (program_of(tmp_path / f"{name}.gguf") for name in ("early", "late"))
    for name in ("layer0.expert_gate", "layer1.expert_up", "layer1.expert_down"):
        np.testing.assert_array_equal(early.matrices[name].data, late.matrices[name].data)
    assert list(early.matrices) == list(late.matrices)


Windows = list[int | None]


@pytest.mark.parametrize(
    ("name", "settings", "windows"),
    [
        ("gemma2", {}, [20, None, 20]),
        ("gemma2", {"sliding_window_pattern": [False, True, True]}, [None, 20, 20]),
        ("gemma3", {}, [20, 20, 20, 20, 20, None, 20]),
        ("gemma3", {"sliding_window_pattern": 2}, [20, None, 20, None, 20, None, 20]),
        ("gemma3", {"sliding_window_pattern": [True] * 6 + [False]}, [20] * 6 + [None]),
        ("mistral", {}, [20, 20]),
        ("mistral", {"sliding_window_pattern": 0}, [20, 20]),
        ("mistral", {"sliding_window_pattern": 1}, [None, None]),
    ],
)
def test_a_pattern_says_which_layers_have_a_window(
    tmp_path: Path, name: str, settings: dict[str, Any], windows: Windows
) -> None:
    checkpoint = {**WRITTEN[name], "sliding_window": 20}
    write_family_gguf(tmp_path / "m.gguf", make_checkpoint(tmp_path, **checkpoint), more=more(name, settings))
    spec = load_model(tmp_path / "m.gguf").spec
    assert [layer.attention.window for layer in spec.layers] == windows


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gemma2", {"sliding_window_pattern": [True]}, "attention.sliding_window_pattern must be .* a list of 3"),
        ("gemma2", {"sliding_window_pattern": [1, 2, 0]}, "attention.sliding_window_pattern must be"),
        ("mistral", {"sliding_window_pattern": -1}, "attention.sliding_window_pattern must be a number from 0"),
        ("olmo2", {"sliding_window": 20}, "attention.sliding_window must be absent: no olmo2"),
    ],
)
def test_windows_that_are_not_understood_are_refused(
    tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    write_family_gguf(tmp_path / "m.gguf", make_checkpoint(tmp_path, **WRITTEN[name]), more=more(name, settings))
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "m.gguf")


def more(name: str, settings: dict[str, Any]) -> Callable[[gguf.GGUFWriter], None]:
    """Writes settings of attention: lists as arrays, numbers as signed ones."""
    kind = WRITTEN[name]["kind"]
    prefix = f"{ARCHITECTURES.get(kind, kind)}.attention."

    def write(writer: gguf.GGUFWriter) -> None:
        for key, value in settings.items():
            add = writer.add_array if isinstance(value, list) else writer.add_int32
            add(prefix + key, value)

    return write


@pytest.mark.parametrize("compressed", [False, True], ids=["early", "late"])
def test_deepseek_is_described_and_refused_by_what_is_missing(tmp_path: Path, compressed: bool) -> None:
    """The sizes of DeepSeek-V2-Lite, whose tensors alone are left out."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "deepseek2")
    for name, value in {
        "block_count": 27, "context_length": 163840, "embedding_length": 2048, "feed_forward_length": 10944,
        "attention.head_count": 16, "attention.head_count_kv": 1 if compressed else 16, "attention.kv_lora_rank": 512,
        "attention.key_length": 576 if compressed else 192, "attention.value_length": 512 if compressed else 128,
        "rope.dimension_count": 64, "expert_count": 64, "expert_used_count": 6, "expert_shared_count": 2,
        "expert_feed_forward_length": 1408, "leading_dense_block_count": 1,
        **({"attention.key_length_mla": 192, "attention.value_length_mla": 128} if compressed else {}),
    }.items():  # fmt: skip
        writer.add_uint32(f"deepseek2.{name}", value)
    writer.add_float32("deepseek2.attention.layer_norm_rms_epsilon", 1e-6)
    for name in ("token_embd.weight", "output.weight"):
        writer.add_tensor(name, np.zeros((102400, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    spec = load_model(tmp_path / "m.gguf").spec
    assert (spec.family, spec.num_parameters) == ("deepseek_v2", 15_706_484_224)
    with pytest.raises(ModelError, match="deepseek_v2: layer 0 needs multi-head latent attention, which no op"):
        check_supported(spec)

"""Logits of lowered programs, on the numpy reference and the CPU kernels, against transformers in float32."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.models_for_tests import (
    make_checkpoint,
    program_log_probabilities,
    reference_log_probabilities,
    transformers_llama_of_gguf,
    write_gguf,
)

from headrace.core.errors import ModelError
from headrace.core.model_spec import LatentSpec, ModelSpec
from headrace.models.loader import load_model
from headrace.models.lowering import lower
from headrace.models.text import load_text
from headrace.ops.cpu import CpuProgram, available_isas
from headrace.ops.matrix import Matrix
from headrace.ops.program import Program

POSITIONS = 75
TOLERANCE = 1e-3

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True},
    "llama, one KV head": {"num_key_value_heads": 1},
    "llama, no grouping": {"num_key_value_heads": 4},
    "llama, head_dim of its own": {"head_dim": 32},
    "llama, biases everywhere": {"attention_bias": True, "mlp_bias": True},
    "llama, rope as in 3.1": {"rope_parameters": LLAMA3_ROPE},
    "llama, linear rope": {"rope_parameters": LINEAR_ROPE},
    "llama, gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "llama, bfloat16": {"dtype": torch.bfloat16},
    "llama, float16": {"dtype": torch.float16},
    "llama, three shards": {"shards": 3},
    "qwen2": {"kind": "qwen2"},
    "qwen2, tied": {"kind": "qwen2", "tie_word_embeddings": True},
    "qwen2, bfloat16 in shards": {"kind": "qwen2", "dtype": torch.bfloat16, "shards": 2},
    "qwen2, windows": {
        "kind": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
        "num_hidden_layers": 3,
    },
}


def tokens(seed: int = 0, vocabulary: int = 320) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, POSITIONS).astype(np.int32)


def program_of(path: Path, quantization: str = "auto", **options: Any) -> Program:
    model = load_model(path)
    settings = {"kv_dtype": "fp32", "block_size": 16, **options}
    return lower(model.spec, model.weights, quantization=quantization, **settings)


@pytest.mark.parametrize(("quantization", "scheme", "tolerance"), [("int8", "q8", 0.05), ("int4", "q4", 0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_floats_are_quantized_on_demand(
    tmp_path: Path, dtype: torch.dtype, quantization: str, scheme: str, tolerance: float
) -> None:
    model = make_checkpoint(tmp_path, kind="qwen2", dtype=dtype, sharpness=1.0)
    program = program_of(tmp_path, quantization)
    schemes = {name: matrix.scheme for name in program.matrices for matrix in [program.matrices[name]]}
    assert schemes.pop("embedding") == schemes.pop("head") == "q8"
    assert set(schemes.values()) == {scheme}
    ours = program_log_probabilities(program, tokens(), provider=CpuProgram)
    assert tolerance / 10 < np.abs(ours - reference_log_probabilities(model, tokens())).mean() <= tolerance
    assert program.fingerprint != program_of(tmp_path).fingerprint


def test_bfloat16_stays_as_stored_and_gives_the_very_bits_of_float32(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, kind="qwen2", dtype=torch.bfloat16)
    program = program_of(tmp_path, "none")
    matrices = dict(program.matrices)
    assert {matrix.scheme for matrix in matrices.values()} == {"bf16"}
    wide = {name: Matrix("f32", m.n, m.k, m.dequantize()) for name, m in matrices.items()}
    for isa in available_isas():
        provider = partial(CpuProgram, isa=isa)
        stored, widened = (dataclasses.replace(program, matrices=m) for m in (matrices.copy(), wide.copy()))
        np.testing.assert_array_equal(
            program_log_probabilities(stored, tokens(), provider=provider),
            program_log_probabilities(widened, tokens(), provider=provider),
        )


def test_what_is_quantized_stays_as_it_is_and_odd_widths_are_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, intermediate_size=100)
    with pytest.raises(ModelError, match=r"layer0.down has 100 columns; .* multiple of 32: use auto"):
        dict(program_of(tmp_path, "int4").matrices)


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.abs(ours - theirs).max() <= TOLERANCE


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_safetensors_checkpoint_gives_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model = make_checkpoint(tmp_path, **CHECKPOINTS[name])
    expected = reference_log_probabilities(model, tokens())
    program = program_of(tmp_path)
    assert_close(program_log_probabilities(program, tokens()), expected)
    assert_close(program_log_probabilities(program, tokens(), chunk=7), expected)
    assert_close(program_log_probabilities(program, tokens(), chunk=31, provider=CpuProgram), expected)
    widened = program_of(tmp_path, "none")
    assert_close(program_log_probabilities(widened, tokens(), provider=CpuProgram), expected)


def test_attention_of_the_test_models_has_peaks(tmp_path: Path) -> None:
    """Flat attention would hide a wrong rope or mask: the tests above rest on this."""
    model = make_checkpoint(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        attention = model(torch.from_numpy(tokens().astype(np.int64))[None], output_attentions=True).attentions
    peaks = torch.cat([layer[0, :, POSITIONS // 2 :].max(-1).values.flatten() for layer in attention])
    assert peaks.median() > 10 / POSITIONS


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_gives_the_logits_of_transformers(tmp_path: Path, kind: str, stored: str, tied: bool) -> None:
    model = make_checkpoint(tmp_path, kind, tie_word_embeddings=tied)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, gguf.GGMLQuantizationType[stored])
    expected = reference_log_probabilities(model, tokens())
    program = program_of(path, "none")
    assert_close(program_log_probabilities(program, tokens()), expected)
    assert_close(program_log_probabilities(program, tokens(), provider=CpuProgram), expected)


@pytest.mark.parametrize(("stored", "scheme"), [("Q8_0", "q8"), ("Q4_0", "q4"), ("Q4_1", "q4"), ("BF16", "bf16")])
def test_weights_stay_as_stored_or_are_widened_on_demand(tmp_path: Path, stored: str, scheme: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make_checkpoint(tmp_path), gguf.GGMLQuantizationType[stored])
    program = program_of(path)
    assert {matrix.scheme for matrix in program.matrices.values()} == {scheme}
    floats = "bf16" if stored == "BF16" else "f32"
    assert {matrix.scheme for matrix in program_of(path, "none").matrices.values()} == {floats}


def test_the_default_model_gives_the_logits_of_transformers(default_model: Path) -> None:
    text = " ".join(Path(__file__).read_text().split())
    ids = np.array(load_text(default_model).tokenizer.encode(text)[:256], np.int32)
    assert len(ids) == 256
    expected = reference_log_probabilities(transformers_llama_of_gguf(default_model), ids)
    program = program_of(default_model, "none")
    assert_close(program_log_probabilities(program, ids[:48], chunk=20), expected[:48])
    assert_close(program_log_probabilities(program, ids, provider=CpuProgram), expected)


def test_parts_stored_differently_are_widened_and_noted(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    model = make_checkpoint(folder)
    model.model.layers[1].self_attn.v_proj.to(torch.bfloat16)
    model.save_pretrained(folder)
    model.float()
    program = program_of(folder)
    assert program.matrices["layer1.qkv"].scheme == "f32"
    assert program.notes == ["1 matrix stored as bf16 and f32: computed as float32"]
    assert_close(program_log_probabilities(program, tokens()), reference_log_probabilities(model, tokens()))


def test_the_fingerprint_stands_for_the_numbers_and_nothing_else(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "a")
    base = program_of(tmp_path / "a").fingerprint
    model.save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert program_of(tmp_path / "sharded").fingerprint == base
    assert program_of(tmp_path / "a", block_size=32).fingerprint == base
    assert program_of(tmp_path / "a", "none").fingerprint != base
    assert program_of(tmp_path / "a", kv_dtype="bf16").fingerprint != base
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[95, 63] += 1e-3
    model.save_pretrained(tmp_path / "changed")
    assert program_of(tmp_path / "changed").fingerprint != base


def test_the_rope_table_is_no_longer_than_asked(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    assert len(program_of(tmp_path, max_positions=40).vectors["rope0"]) == 40
    assert len(program_of(tmp_path, max_positions=4000).vectors["rope0"]) == 512


def with_layer(spec: ModelSpec, **attention_or_mlp: Any) -> ModelSpec:
    """The spec with its last layer changed: fields of its attention, its mlp or itself."""
    layer = spec.layers[-1]
    for name, value in attention_or_mlp.items():
        for part in ("attention", "mlp"):
            if hasattr(getattr(layer, part), name):
                changed = dataclasses.replace(getattr(layer, part), **{name: value})
                layer = dataclasses.replace(layer, **{part: changed})
        if hasattr(layer, name):
            layer = dataclasses.replace(layer, **{name: value})
    return dataclasses.replace(spec, layers=(*spec.layers[:-1], layer))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latent": LatentSpec(None, 8, 8, 8)}, "layer 1 needs multi-head latent attention"),
        ({"sinks": True}, "layer 1 needs attention sinks"),
        ({"experts": 4, "router": "sigmoid"}, "layer 1 needs sigmoid routing of experts"),
        ({"experts": 4, "shared_hidden": 8}, "layer 1 needs experts shared by all tokens"),
        ({"experts": 4, "hidden": 100}, "layer 1 needs experts of width 100 and 64"),
        ({"gated": False}, "layer 1 needs feed-forward without a gate"),
        ({"activation": "relu2"}, "layer 1 needs activation relu2"),
        ({"sinks": True, "gated": False}, "layer 1 needs attention sinks, feed-forward without a gate, which"),
        ({"heads": 2}, "layers of different widths"),
        ({"hidden": 64}, "layers of different widths"),
    ],
)
def test_what_no_op_provides_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    make_checkpoint(tmp_path)
    model = load_model(tmp_path)
    with pytest.raises(ModelError, match=message):
        lower(with_layer(model.spec, **change), model.weights, quantization="auto", kv_dtype="bf16", block_size=16)


def test_ranks_are_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="rank 1 of 2"):
        program_of(tmp_path, rank=1, size=2)

"""Checkpoints quantized by others' methods, through the front door: logits against transformers on the values that
the packed tensors stand for."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.models_for_tests import make_checkpoint, program_log_probabilities, reference_log_probabilities
from tests.quantized_checkpoints import (
    Packed,
    awq,
    compressed,
    float_quantized,
    gptq,
    int_quantized,
    pack_quantized,
    quantize_checkpoint,
)

from headrace.core.errors import ModelError
from headrace.models.formats.packed_layouts import Awq, Fp8, Gptq, PackedIntegers, PlainIntegers
from headrace.models.formats.packed_source import PackedSource
from headrace.models.formats.safetensors import SafetensorsFolder
from headrace.models.loader import load_model
from headrace.models.lowering import lower
from headrace.ops.program import Program

Pack = Callable[[torch.Tensor], Packed]
SIZES = {"hidden_size": 64, "intermediate_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
INT4 = {"num_bits": 4, "strategy": "group", "group_size": 32}
CHECKPOINTS: dict[str, tuple[Pack, dict[str, Any], str]] = {
    "awq": (partial(awq, group=32), AWQ, "q4"),
    "awq, groups of 64": (partial(awq, group=64), AWQ | {"group_size": 64}, "q4"),
    "gptq": (partial(gptq, group=32), GPTQ, "q4"),
    "gptq, not symmetric": (partial(gptq, group=64, symmetric=False), GPTQ | {"group_size": 64}, "q4"),
    "gptq, v2": (partial(gptq, group=32, offset=0), GPTQ | {"checkpoint_format": "gptq_v2"}, "q4"),
    "gptq, 8 bits": (partial(gptq, group=32, bits=8), GPTQ | {"bits": 8}, "q8"),
    "gptq, 8 bits, not symmetric": (partial(gptq, group=32, bits=8, symmetric=False), GPTQ | {"bits": 8}, "re-packed"),
    "gptq, groups of 16": (partial(gptq, group=16), GPTQ | {"group_size": 16}, "re-packed"),
    "w4a16": (partial(pack_quantized, group=32), compressed("pack-quantized", **INT4), "q4"),
    "w4a16, not symmetric": (
        partial(pack_quantized, group=32, symmetric=False),
        compressed("pack-quantized", **INT4 | {"symmetric": False}),
        "q4",
    ),
    "w8a16": (
        partial(pack_quantized, group=32, bits=8),
        compressed("pack-quantized", strategy="group", group_size=32),
        "q8",
    ),
    "w8a8": (lambda w: int_quantized(w, w.shape[1]), compressed("int-quantized", strategy="channel"), "q8"),
    "w8a8, groups": (
        partial(int_quantized, group=32),
        compressed("int-quantized", strategy="group", group_size=32),
        "q8",
    ),
    "fp8, a scale per tensor": (
        partial(float_quantized, block=(0, 0)),
        compressed("float-quantized", type="float", strategy="tensor"),
        "re-packed",
    ),
    "fp8, a scale per output": (
        partial(float_quantized, block=(1, 0)),
        compressed("float-quantized", type="float", strategy="channel"),
        "re-packed",
    ),
    "fp8, blocks": (
        partial(float_quantized, block=(48, 40), scale_name="weight_scale_inv"),
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [48, 40]},
        "re-packed",
    ),
}


def load(folder: Path, quantization: str = "auto") -> Program:
    model = load_model(folder)
    return lower(model.spec, model.weights, quantization=quantization, kv_dtype="fp32", block_size=16)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_quantized_checkpoint_means_what_transformers_computes_from_its_values(tmp_path: Path, name: str) -> None:
    pack, config, kept = CHECKPOINTS[name]
    model = make_checkpoint(tmp_path, **SIZES)
    quantize_checkpoint(tmp_path, model, pack, config)
    tokens = np.arange(40, dtype=np.int32) * 7 % 320
    expected = reference_log_probabilities(model, tokens)
    assert np.abs(program_log_probabilities(load(tmp_path, "none"), tokens) - expected).max() < 1e-3
    program = load(tmp_path)
    matrix, exact = program.matrices["layer1.down"], model.model.layers[1].mlp.down_proj.weight.detach().numpy()
    if kept == "re-packed":
        assert matrix.scheme == "q8" and "8-bit integers with a scale per 32" in program.notes[0]
        assert np.abs(matrix.dequantize() - exact).max() <= np.abs(exact).max() / 127
    else:
        assert (matrix.scheme, program.notes) == (kept, [])
        np.testing.assert_allclose(matrix.dequantize(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "method 'bitsandbytes' is not supported; supported are awq .4 bits"),
        ({"quant_method": ["awq"]}, "is not supported; supported are"),
        ([1], "quantization_config must be an object"),
        (GPTQ | {"desc_act": True}, "quantization_config.desc_act must be False, got True"),
        (GPTQ | {"bits": 3}, "quantization_config.bits must be 4 or 8, got 3"),
        (GPTQ | {"group_size": 0}, "group_size must be -1 or a positive number, got 0"),
        (GPTQ | {"dynamic": {"-:lm_head": {}}}, "dynamic must be absent or empty"),
        (AWQ | {"version": "marlin"}, "version must be 'gemm'"),
        (compressed("nvfp4-pack-quantized"), "format must be 'pack-quantized' or"),
        (compressed("pack-quantized", **INT4, actorder="group"), "weights.actorder must be .* got 'group'"),
        (compressed("pack-quantized", strategy="channel", num_bits=3), "weights.num_bits must be 4 or 8, got 3"),
        (compressed("int-quantized") | {"config_groups": {}}, "must ask for one scheme of weights, got 0"),
        (compressed("int-quantized") | {"config_groups": 3}, "config_groups must be an object, got 3"),
        (compressed("int-quantized") | {"transform_config": {"a": 1}}, "transform_config must be absent"),
        (compressed("int-quantized") | {"sparsity_config": {"format": "sparse-24"}}, "format must be 'dense'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two positive numbers"),
        (AWQ, "weights are quantized, but no tensor ends in .qweight"),
    ],
)
def test_what_a_config_asks_for_and_is_not_done_is_refused_by_name(tmp_path: Path, config: Any, message: str) -> None:
    make_checkpoint(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


MODULE = "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize(
    ("piece", "value", "message"),
    [
        ("scales", None, f"{MODULE}.scales in .* is missing beside its quantized weight"),
        ("scales", torch.ones(4, 63), "is F32 of shape .4, 63., its quantized weight needs F32 or F16 or BF16 of"),
        ("qzeros", torch.ones(4, 8, dtype=torch.int64), "is I64 of shape"),
        ("qweight", torch.ones(16, dtype=torch.int32), "qweight has shape"),
        ("qweight", None, f"{MODULE}.*is missing|{MODULE}.* is not part of llama"),
        ("g_idx", torch.arange(128, dtype=torch.int32).flip(0) // 32, "g_idx reorders its inputs"),
        ("extra", torch.ones(3), f"{MODULE}.extra in .* is not part of llama"),
        ("weight", torch.ones(64, 128), f"{MODULE}.weight.* twice"),
    ],
)
def test_a_piece_that_is_missing_or_misshapen_is_refused_by_name(
    tmp_path: Path, piece: str, value: torch.Tensor | None, message: str
) -> None:
    model = make_checkpoint(tmp_path, **SIZES)
    quantize_checkpoint(tmp_path, model, partial(gptq, group=32), GPTQ)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(f"{MODULE}.{piece}", None)
    save_file(tensors if value is None else {**tensors, f"{MODULE}.{piece}": value}, path)
    with pytest.raises(ModelError, match=message):
        list(load(tmp_path).matrices.values())


def test_a_quantized_embedding_or_head_is_read_or_refused_but_never_dropped(tmp_path: Path) -> None:
    for name in ("model.embed_tokens", "lm_head"):
        folder = tmp_path / name
        model = make_checkpoint(folder, tie_word_embeddings=name != "lm_head", **SIZES)
        quantize_checkpoint(folder, model, partial(gptq, group=32), GPTQ)
        path = folder / "model.safetensors"
        tensors = load_file(path)
        pieces, exact = gptq(model.get_submodule(name).weight.detach(), 32)
        save_file({**tensors, **{f"{name}.{piece}": tensor for piece, tensor in pieces.items()}}, path)
        with pytest.raises(ModelError, match=rf"{name}\.weight.* twice"):
            load(folder)
        del tensors[f"{name}.weight"]
        save_file({**tensors, **{f"{name}.{piece}": tensor for piece, tensor in pieces.items()}}, path)
        matrix = load(folder).matrices["head" if name == "lm_head" else "embedding"]
        assert matrix.scheme == "q4"
        np.testing.assert_allclose(matrix.dequantize(), exact.numpy(), rtol=1e-6, atol=1e-7)


def test_a_quantized_weight_that_the_config_does_not_explain_is_refused(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, **SIZES)
    quantize_checkpoint(tmp_path, model, lambda w: int_quantized(w, 32), {})
    with pytest.raises(ModelError, match=r"\.weight in .* is stored as I8, which config.json does not explain|_scale"):
        load(tmp_path)


def test_the_fingerprint_sees_every_piece(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, **SIZES)
    quantize_checkpoint(tmp_path, model, partial(gptq, group=32), GPTQ)
    path = tmp_path / "model.safetensors"
    tensors, seen = load_file(path), {load(tmp_path).fingerprint}
    for piece in ("qweight", "qzeros", "scales"):
        changed = tensors[f"{MODULE}.{piece}"].clone()
        changed[0, 0] += 1
        save_file({**tensors, f"{MODULE}.{piece}": changed}, path)
        seen.add(load(tmp_path).fingerprint)
    assert len(seen) == 4


LAYOUTS = [Awq(32), Gptq(4, 32, 1), PackedIntegers(4, 32), PlainIntegers(-1), Fp8((1, 0))]
PACKERS: list[Pack] = [
    partial(awq, group=32),
    partial(gptq, group=32),
    partial(pack_quantized, group=32, symmetric=False),
    lambda w: int_quantized(w, w.shape[1]),
    partial(float_quantized, block=(1, 0)),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_checkpoint_is_read_or_refused_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(range(len(LAYOUTS))))
    pieces, _ = PACKERS[kind](torch.linspace(-1, 1, 64 * 32).reshape(32, 64))
    save_file({f"m.{piece}": tensor for piece, tensor in pieces.items()}, tmp_path / "good")
    good = bytearray((tmp_path / "good").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place] = data.draw(st.sampled_from([*b'0123456789{}[]",:-eIF', 0, 255]))
    (tmp_path / "model.safetensors").write_bytes(good)
    try:
        source = PackedSource(SafetensorsFolder(tmp_path), data.draw(st.sampled_from(LAYOUTS)))
        for name in source.names():
            if len(source.shape(name)) == 2:
                source.digest(name)
                matrix = source.matrix(name)
                assert matrix.data.nbytes <= 2 * len(good)
    except ModelError:
        return

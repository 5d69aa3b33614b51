import json
from pathlib import Path

import gguf
from safetensors.torch import load_file, save_file
from tests.models_for_tests import make_checkpoint, write_gguf

from headrace.cli import run


def inspect(model: Path, tmp_path: Path) -> tuple[int, dict]:
    status = run(["inspect", str(model), "--json", str(tmp_path / "report.json")])
    return status, json.loads((tmp_path / "report.json").read_text())


def test_a_model_is_described_from_its_headers(tmp_path: Path, default_model: Path) -> None:
    status, report = inspect(default_model, tmp_path)
    assert (status, report["refused"], report["family"]) == (0, [], "llama")
    assert (report["parameters"], report["context"], report["chat_template"]) == (134_515_008, 8192, True)
    assert report["kv_per_token_bytes"]["bf16_bytes"] == 30 * 3 * 64 * 2 * 2
    assert set(report["stored"]) == {"F32_bytes", "Q4_1_bytes", "Q8_0_bytes"}
    assert report["computed"] == {"Q4_1": "as stored", "Q8_0": "as stored"}
    assert (report["tokenizer"], report["template_takes"]) == ("BPE (tokenizer.json)", ["add_generation_prompt"])


def test_everything_that_would_be_refused_is_listed(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    status, report = inspect(tmp_path / "m", tmp_path)
    assert status == 2
    assert "up_proj.weight" in report["refused"][0] and "is missing" in report["refused"][0]
    assert any("tokenizer" in reason for reason in report["refused"][1:])
    assert report["parameters"] > 0 and list(report["stored"]) == ["F32_bytes"]


def test_a_gguf_file_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, make_checkpoint(tmp_path), gguf.GGMLQuantizationType.Q5_0)
    status, report = inspect(path, tmp_path)
    assert status == 2 and len(report["refused"]) == 1
    assert set(report["stored"]) == {"F32_bytes", "Q5_0_bytes"}


def test_types_that_will_be_repacked_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, make_checkpoint(tmp_path), gguf.GGMLQuantizationType.Q5_1)
    assert inspect(path, tmp_path)[1]["computed"] == {"Q5_1": "8-bit integers with a scale per 32"}

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models_for_tests import make_checkpoint, write_gguf

from headrace.core.errors import ModelError
from headrace.core.model_spec import Rope
from headrace.models.loader import load_model
from headrace.models.lowering import lower


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_tensors(folder: Path, remove: str = "", **add: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(remove, None)
    save_file({**tensors, **add}, path)


def load_and_check(path: Path) -> None:
    model = load_model(path)
    lower(model.spec, model.weights, quantization="auto", kv_dtype="bf16", block_size=16)


def test_the_spec_is_what_the_config_says(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, "qwen2", num_key_value_heads=1, tie_word_embeddings=True)
    spec = load_model(tmp_path).spec
    assert (spec.family, spec.vocab_size, spec.hidden, spec.tied_embeddings) == ("qwen2", 320, 64, True)
    attention = spec.layers[0].attention
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.qkv_bias) == (4, 1, 16, True)
    assert spec.num_parameters == sum(p.numel() for p in model.parameters())


def test_windows_make_a_second_group(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1)
    assert [(g.kind, g.layers, g.window) for g in load_model(tmp_path).spec.kv_groups] == [
        ("full", (0,), None),
        ("window", (1,), 9),
    ]


def test_rope_is_read_in_the_old_writing_and_the_new(tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    make_checkpoint(tmp_path, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    new = load_model(tmp_path).spec
    assert (new.layers[0].attention.rope or Rope(0, 0)).theta == 5e5
    for kind in ("rope_type", "type"):
        change_config(tmp_path, rope_parameters=..., rope_theta=500000, rope_scaling={kind: "llama3", **scaling})
        assert load_model(tmp_path).spec == new
    change_config(tmp_path, rope_scaling=None)
    assert load_model(tmp_path).spec.layers[0].attention.rope == Rope(5e5, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LamaForCausalLM"]}, "'LamaForCausalLM' is not supported.*nearest is LlamaForCausalLM"),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "supported are Gemma2ForCausalLM, .*, SmolLM3ForCausalLM; the nearest",
        ),
        ({"architectures": ...}, "names no architecture"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to 4096, got 1000000000"),
        ({"hidden_size": "64"}, "hidden_size must be an integer"),
        ({"hidden_size": 0}, "hidden_size must be an integer"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        ({"head_dim": 15}, "heads of 15"),
        ({"hidden_act": "relu"}, "hidden_act must be one of silu"),
        (
            {"rope_parameters": {"rope_type": "spiral", "factor": 2.0}},
            "rope_type must be one of default, linear, dynamic",
        ),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope.factor must be a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"quantization_config": {"quant_method": "hqq"}}, "method .hqq. is not supported; supported are awq"),
        (
            {"intermediate_size": 100},
            "mlp.gate_proj.weight in .*model.safetensors has shape \\(96, 64\\).*\\(100, 64\\)",
        ),
    ],
)
def test_a_config_that_cannot_be_served_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    make_checkpoint(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        load_and_check(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": ' * 50_000])
def test_a_torn_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(tmp_path)


def test_a_missing_tensor_is_refused_by_name(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    change_tensors(tmp_path, remove="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight in .* is missing; llama needs it"):
        load_and_check(tmp_path)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "x"])
def test_a_tensor_that_would_be_ignored_is_refused_by_name(tmp_path: Path, name: str) -> None:
    make_checkpoint(tmp_path)
    change_tensors(tmp_path, **{name: torch.ones(64)})
    with pytest.raises(ModelError, match=f"{name} in .*model.safetensors is not part of llama"):
        load_and_check(tmp_path)


def test_rotary_frequencies_kept_by_old_checkpoints_are_no_loss(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    change_tensors(tmp_path, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    load_and_check(tmp_path)


def test_a_stored_head_of_a_tied_model_must_be_its_embedding(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, tie_word_embeddings=True)
    embedding = model.model.embed_tokens.weight.detach()
    change_tensors(tmp_path, **{"lm_head.weight": embedding.clone()})
    load_and_check(tmp_path)
    change_tensors(tmp_path, **{"lm_head.weight": embedding * 2})
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        load_and_check(tmp_path)


def gguf_with(path: Path, **changes: Any) -> Path:
    """A GGUF file whose header lacks, or has otherwise, what `changes` say."""
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"))
    values = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **changes,
    }
    for name, value in values.items():
        key = f"llama.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "lama"}, "'lama' is not supported; supported are gemma2, .*, smollm3; the nearest is llama"),
        ({"embedding_length": None}, "llama.embedding_length must be an integer"),
        ({"attention.head_count": 0}, "llama.attention.head_count must be"),
        ({"rope.scaling.type": "spiral"}, "llama.rope.scaling.type must be none, linear or yarn.*got 'spiral'"),
        ({"expert_count": 8}, "llama.expert_used_count must be an integer from 1 to 8, got None"),
        ({"attention.value_length": 8}, "llama.attention.value_length must be 16"),
        ({"attention.head_count": 2**24, "attention.key_length": 2**24}, "has shape|is missing"),
        ({}, "blk.0.attn_q.weight in .* is missing"),
    ],
)
def test_a_gguf_header_that_cannot_be_served_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_and_check(gguf_with(tmp_path / "a.gguf", **changes))


def test_rope_factors_of_a_gguf_file_scale_its_frequencies(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, extra={"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)})
    loaded = load_model(path)
    program = lower(loaded.spec, loaded.weights, quantization="auto", kv_dtype="fp32", block_size=16)
    plain = 1 / 10000.0 ** (np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(program.vectors["rope0"][1, :, 1], np.sin(plain / np.linspace(1, 8, 8)), atol=1e-6)

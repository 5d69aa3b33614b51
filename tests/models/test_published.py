"""Published models by name: their sizes by hand arithmetic and as their makers state them."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError, ModelError
from headrace.core.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from headrace.models.published import CONFIGS, published_model

# All, as the tensors of the checkpoint sum (DeepSeek-V3 less its 14,848 router biases); active: less idle experts.
PARAMETERS = {
    "smollm2-135m": (134_515_008, 134_515_008),
    "llama-3-8b": (8_030_261_248, 8_030_261_248),
    "llama-3-70b": (70_553_706_496, 70_553_706_496),
    "llama-3.1-405b": (405_853_388_800, 405_853_388_800),
    "qwen3-32b": (32_762_123_264, 32_762_123_264),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
    "deepseek-v3": (671_026_404_352, 37_552_282_624),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_all_and_active(name: str) -> None:
    spec = published_model(name)
    assert (spec.num_parameters, spec.active_parameters) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "dtype", "per_token"),
    [
        ("llama-3-8b", "bf16", 2 * 32 * 8 * 128 * 2),
        ("llama-3-70b", "bf16", 2 * 80 * 8 * 128 * 2),  # 320 KiB, not the 2.5 MiB of 64 heads
        ("llama-3-70b", "fp8", 2 * 80 * 8 * 128),
        ("llama-3.1-405b", "bf16", 2 * 126 * 8 * 128 * 2),
        ("qwen3-235b-a22b", "bf16", 2 * 94 * 4 * 128 * 2),
        ("deepseek-v3", "bf16", 61 * (512 + 64) * 2),
    ],
)
def test_kv_of_a_token(name: str, dtype: str, per_token: int) -> None:
    spec = published_model(name)
    assert spec.kv_bytes(1, dtype) == per_token
    assert spec.kv_bytes(1000, dtype) == 1000 * per_token


def test_ranks_share_heads_but_keep_what_they_all_need() -> None:
    assert published_model("llama-3-70b").kv_bytes(10, ranks=8) == 10 * 2 * 80 * 128 * 2
    assert published_model("qwen3-235b-a22b").kv_bytes(10, ranks=8) == 10 * 2 * 94 * 128 * 2  # 4 heads, each twice
    assert published_model("deepseek-v3").kv_bytes(10, ranks=8) == 10 * 61 * 576 * 2


def test_a_window_keeps_no_more_than_its_tokens() -> None:
    attention = AttentionSpec(4, 2, 64, 64, 0.125, None)
    near = AttentionSpec(4, 2, 64, 64, 0.125, None, window=100)
    layers = (LayerSpec(attention, MlpSpec(64)), LayerSpec(near, MlpSpec(64)))
    spec = ModelSpec("toy", 100, 256, layers, 1e-5, 4096, False)
    assert spec.kv_bytes(1000) == (1000 + 100) * 2 * 2 * 64 * 2


def test_weights_by_dtype() -> None:
    spec = published_model("llama-3-70b")
    outside = 2 * 128256 * 8192
    assert spec.weight_bytes("bf16") == 2 * spec.num_parameters
    assert spec.weight_bytes("fp8") == spec.num_parameters + outside
    assert spec.weight_bytes("int4") < 0.57 * spec.weight_bytes("fp8")
    with pytest.raises(ConfigError, match=r"dtype must be one of fp32, bf16.*got 'fp7'"):
        spec.weight_bytes("fp7")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
    ],
)
def test_names_as_the_hub_writes_them(written: str, name: str) -> None:
    assert published_model(written) == published_model(name)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"'llama-3-71b' is not known.*nearest is llama-3-70b"):
        published_model("llama-3-71b")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_name_has_a_spec(name: str) -> None:
    assert published_model(name).num_parameters > 1e8

"""Thirteen questions that anybody who plans a fleet asks, answered by hand: what a GPU holds of weights and cache, what
a token keeps, how many requests fit. The arithmetic is written out, and the code must come to the same.
"""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.models.published import published_model
from headrace.plan import question
from headrace.plan.closed_loop import Load, clients_held
from headrace.plan.memory import memory_of
from headrace.policy.roofline import Serving

GIB = 2**30


def held(model: str, gpu: str, ranks: int, dtype: str, prompt: int, answer: int) -> int:
    """Requests whose whole length a replica's cache holds, nine tenths full."""
    cache = "fp8" if dtype == "fp8" else "bf16"
    serving = Serving(known_hardware(gpu), ranks, dtype, cache)
    return clients_held(published_model(model), serving, Load(1, prompt, answer))[0]


def usable(gib: int, gpus: int) -> int:
    """Nine tenths of a GPU's memory, less 3 GB for activations, graphs and communication."""
    return gpus * int(0.9 * gib * GIB - 3e9)


def test_1_weights_of_llama_3_8b() -> None:
    attention = 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 4096  # q, k and v of 8 heads of 128, o
    layer = attention + 3 * 4096 * 14336 + 2 * 4096  # gate, up, down; two norms
    parameters = 2 * 128256 * 4096 + 32 * layer + 4096  # embedding and head, the last norm
    assert parameters == 8_030_261_248
    assert published_model("llama-3-8b").weight_bytes("bf16") == 2 * parameters  # 16.1 GB


def test_2_weights_of_llama_3_70b_on_each_of_eight_gpus() -> None:
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024
    parameters = 2 * 128256 * 8192 + 80 * (attention + 3 * 8192 * 28672 + 2 * 8192) + 8192
    assert parameters == 70_553_706_496
    each = published_model("llama-3-70b").weight_bytes("bf16") / 8
    assert each == parameters * 2 / 8  # 17.6 GB, not 35
    assert published_model("llama-3-70b").weight_bytes("fp8") == parameters + 2 * 128256 * 8192  # these stay in 16 bits


def test_3_llama_405b_does_not_fit_a_node_of_h100_in_16_bits_and_does_in_8() -> None:
    attention = 2 * 16384 * 16384 + 2 * 16384 * 1024
    parameters = 2 * 128256 * 16384 + 126 * (attention + 3 * 16384 * 53248 + 2 * 16384) + 16384
    assert 2 * parameters == 811_706_777_600 > usable(80, 8) == 594_475_290_624
    with pytest.raises(ConfigError, match=r"811,706,777,600 bytes of bf16 weights do not fit into 594,475,290,624"):
        held("llama-3.1-405b", "h100", 8, "bf16", 200, 200)
    # In FP8: 405.9 GB and 4.2 GB more for embedding and head leave 184.4 GB, in 8 bits 126 x 8 x 256 bytes a token.
    left = usable(80, 8) - (parameters + 2 * 128256 * 16384)
    assert held("llama-3.1-405b", "h100", 8, "fp8", 200, 200) == int(0.9 * left / (400 * 126 * 8 * 256)) == 1608


@pytest.mark.parametrize(
    ("model", "by_hand", "kib"),
    [
        ("llama-3-8b", 2 * 32 * 8 * 128 * 2, 128),
        ("llama-3-70b", 2 * 80 * 8 * 128 * 2, 320),  # the model has 64 heads, but 8 of keys and values
        ("llama-3.1-405b", 2 * 126 * 8 * 128 * 2, 504),
        ("qwen3-32b", 2 * 64 * 8 * 128 * 2, 256),
        ("mixtral-8x7b", 2 * 32 * 8 * 128 * 2, 128),  # experts have no cache
        ("qwen3-235b-a22b", 2 * 94 * 4 * 128 * 2, 188),
        ("deepseek-v3", 61 * (512 + 64) * 2, 68.625),  # a latent of 512 and 64 rotated, in the place of 128 heads
    ],
)
def test_4_cache_of_a_token(model: str, by_hand: int, kib: float) -> None:
    assert published_model(model).kv_bytes(1) == by_hand == kib * 1024


def test_5_cache_of_a_token_on_each_of_eight_ranks() -> None:
    assert published_model("llama-3-70b").kv_bytes(1, ranks=8) == 320 * 1024 / 8  # one head each
    assert published_model("qwen3-235b-a22b").kv_bytes(1, ranks=8) == 2 * 94 * 1 * 128 * 2  # 4 heads, each kept twice
    assert published_model("deepseek-v3").kv_bytes(1, ranks=8) == 61 * 576 * 2  # the latent is not cut


def test_6_a_conversation_of_128k_tokens_in_llama_3_70b() -> None:
    # 131,072 x 320 KiB are 40 GiB: half an 80 GiB GPU for one request, the same over eight GPUs 5 GiB each.
    assert published_model("llama-3-70b").kv_bytes(131072) == 40 * GIB
    assert published_model("llama-3-70b").kv_bytes(131072, ranks=8) == 5 * GIB


def test_7_requests_at_once_of_llama_3_8b_on_one_l40s() -> None:
    # 46.4 GB less 3 GB and 16.1 GB of weights leave 27.3 GB; 2,048 tokens of 128 KiB are 268 MB.
    left = usable(48, 1) - 2 * 8_030_261_248
    assert held("llama-3-8b", "l40s", 1, "bf16", 1024, 1024) == int(0.9 * left / (2048 * 131072)) == 91


def test_8_requests_at_once_of_llama_3_70b_on_eight_a100() -> None:
    # The napkin's node, with its 200 + 200 tokens: 594.5 - 141.1 = 453.4 GB over 131 MB, not 150.
    left = usable(80, 8) - 2 * 70_553_706_496
    assert held("llama-3-70b", "a100", 8, "bf16", 200, 200) == int(0.9 * left / (400 * 327680)) == 3113


def test_9_requests_at_once_of_qwen3_32b_on_one_h200() -> None:
    # 136.3 - 3 - 65.5 = 67.7 GB; 5,120 tokens of 256 KiB are 1.34 GB.
    left = usable(141, 1) - 2 * 32_762_123_264
    assert held("qwen3-32b", "h200", 1, "bf16", 4096, 1024) == int(0.9 * left / (5120 * 262144)) == 45


def test_10_mixtral_keeps_all_experts_and_computes_two() -> None:
    expert = 3 * 4096 * 14336
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    layer = attention + 8 * expert + 4096 * 8 + 2 * 4096  # the router, two norms
    parameters = 2 * 32000 * 4096 + 32 * layer + 4096
    spec = published_model("mixtral-8x7b")
    assert spec.num_parameters == parameters == 46_702_792_704
    assert spec.active_parameters == parameters - 32 * 6 * expert == 12_879_925_248
    # On two A100: 148.6 - 93.4 = 55.2 GB over 1,024 tokens of 128 KiB.
    left = usable(80, 2) - 2 * parameters
    assert held("mixtral-8x7b", "a100", 2, "bf16", 512, 512) == int(0.9 * left / (1024 * 131072)) == 370


def test_11_requests_at_once_of_qwen3_235b_on_eight_h100_in_fp8() -> None:
    # Each GPU: 74.3 GB less 236.3 / 8 = 29.5 leave 44.8 GB; a token keeps one of its 4 heads there: 2 x 94 x 128 bytes.
    parameters, outside = 235_093_634_560, 2 * 151936 * 4096
    left = (usable(80, 8) - parameters - outside) / 8
    assert held("qwen3-235b-a22b", "h100", 8, "fp8", 2048, 512) == int(0.9 * left / (2560 * 2 * 94 * 128)) == 654


def test_12_requests_at_once_of_deepseek_v3_on_eight_h200_in_fp8() -> None:
    # Each GPU: 133.3 GB less 672.9 / 8 = 84.1 leave 49.1 GB, and every one keeps the whole latent: 61 x 576 bytes.
    parameters, outside = 671_026_404_352, 2 * 129280 * 7168
    left = (usable(141, 8) - parameters - outside) / 8
    assert held("deepseek-v3", "h200", 8, "fp8", 4096, 1024) == int(0.9 * left / (5120 * 61 * 576)) == 245


def test_13_memory_of_one_h100_with_half_of_llama_3_70b_in_fp8() -> None:
    total = 80 * GIB
    load = question.Load(rate=1.0, input_len=200, output_len=200, prefix_len=512)
    serving = Serving(known_hardware("h100"), 2, "fp8", "fp8")
    memory = memory_of(published_model("llama-3-70b"), serving, 2048, load)
    assert memory is not None
    reserve = total - int(0.9 * total)  # 8.6 GB
    weights = (70_553_706_496 + 2 * 128256 * 8192) // 2  # 8 bits, embedding and head 16: 36.3 GB
    token = 80 * 8 * 256 // 2  # 80 KiB: half of the heads, 8 bits
    # Four hidden states of 8192 and half of gate and up, 2 x 28672, of 2,048 tokens in 16 bits; of the 3 GB beside.
    activations = 2048 * 2 * (4 * 8192 + 28672)
    left = total - reserve - weights - 512 * token - 3 * 10**9
    assert memory.parts() == {
        "weights": weights,
        "kv_prefix": 512 * token,
        "kv_cache": left,
        "activations": activations,
        "graphs_and_communication": 3 * 10**9 - activations,
        "reserve": reserve,
    }
    assert memory.held == left // (400 * token) == 1157

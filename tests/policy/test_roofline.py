"""The roofline: never faster than the hardware's limits, near hand arithmetic where one limit rules, and monotone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.core.hardware import KNOWN, known_hardware
from headrace.core.model_spec import AttentionSpec, LatentSpec, LayerSpec, MlpSpec, ModelSpec
from headrace.policy.fitted_kernels import kernels_of, measured
from headrace.policy.latency import LatencyModel, StepWork
from headrace.policy.roofline import Roofline, Serving

ATTENTION = AttentionSpec(64, 8, 128, 128, 128**-0.5, None)
DENSE = LayerSpec(ATTENTION, MlpSpec(28672))
LLAMA_70B = ModelSpec("llama", 128256, 8192, (DENSE,) * 80, 1e-5, 131072, False)


def decodes(clients: int, context: int) -> StepWork:
    return StepWork(clients, clients, clients * context, 0.0, clients, clients)


def prompt(tokens: int) -> StepWork:
    return StepWork(tokens, 1, 0, tokens * tokens / 2, 1, 1)


def test_one_decode_takes_the_time_of_reading_the_weights() -> None:
    gpu = known_hardware("h100")
    reading = LLAMA_70B.weight_bytes("bf16") / 4 / gpu.bandwidth
    assert reading < Roofline(LLAMA_70B, Serving(gpu, 4))(decodes(1, 100)) < 1.4 * reading


def test_a_prompt_takes_the_time_of_its_arithmetic() -> None:
    gpu = known_hardware("a100")
    arithmetic = 2 * LLAMA_70B.num_parameters * 8192 / 2 / gpu.peak("bf16")
    assert arithmetic < Roofline(LLAMA_70B, Serving(gpu, 2))(prompt(8192)) < 1.6 * arithmetic


@given(
    gpu=st.sampled_from(sorted(KNOWN)),
    ranks=st.sampled_from([1, 2, 4, 8]),
    clients=st.integers(1, 512),
    context=st.integers(1, 32768),
)
def test_no_step_is_faster_than_memory_allows_and_more_work_takes_longer(
    gpu: str, ranks: int, clients: int, context: int
) -> None:
    hardware = known_hardware(gpu)
    prior = Roofline(LLAMA_70B, Serving(hardware, ranks))
    layers = LLAMA_70B.num_parameters - 2 * 128256 * 8192
    least = (layers * 2 + LLAMA_70B.kv_bytes(context) * clients) / ranks / hardware.bandwidth
    seconds = prior(decodes(clients, context))
    assert seconds > least
    assert prior(decodes(clients, context + 1)) > seconds
    assert prior(decodes(clients + 1, context)) >= seconds


def test_weights_and_cache_of_eight_bits_halve_what_they_cost() -> None:
    gpu = known_hardware("h200")
    wide = Roofline(LLAMA_70B, Serving(gpu, 2)).parts(decodes(64, 8192))
    narrow = Roofline(LLAMA_70B, Serving(gpu, 2, "fp8", "fp8")).parts(decodes(64, 8192))
    assert 0.5 <= narrow.gemm / wide.gemm < 0.65
    assert 0.5 < narrow.attention / wide.attention < 0.6


def test_a_token_reads_only_the_experts_that_it_takes() -> None:
    mixture = LayerSpec(ATTENTION, MlpSpec(14336, experts=8, experts_per_token=2))
    spec = ModelSpec("mixtral", 32000, 4096, (mixture,) * 32, 1e-5, 32768, False)
    gpu = known_hardware("h100")
    one, many = (Roofline(spec, Serving(gpu, 2))(decodes(n, 1)) for n in (1, 64))
    assert spec.active_parameters / gpu.bandwidth < one < 0.4 * many


def test_a_window_bounds_and_a_latent_shrinks_what_attention_reads() -> None:
    near = LayerSpec(AttentionSpec(64, 8, 128, 128, 128**-0.5, None, window=1024), DENSE.mlp)
    latent = LayerSpec(
        AttentionSpec(64, 64, 192, 128, 192**-0.5, None, latent=LatentSpec(1536, 512, 64, 128)), DENSE.mlp
    )
    work, gpu = decodes(64, 16384), known_hardware("h100")
    full, windowed, compressed = (
        Roofline(ModelSpec("toy", 32000, 8192, (layer,) * 8, 1e-5, 32768, False), Serving(gpu)).parts(work).attention
        for layer in (DENSE, near, latent)
    )
    assert windowed < full / 10
    assert 0.2 < compressed / full < 0.4  # 576 values of a token instead of 2,048


def test_more_ranks_than_a_node_joins_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor parallel size must be 1 to 8, the h100s that one node joins, got 16"):
        Roofline(LLAMA_70B, Serving(known_hardware("h100"), 16))


def test_it_is_a_prior_of_the_latency_model() -> None:
    prior = Roofline(LLAMA_70B, Serving(known_hardware("h100"), 8))
    assert LatencyModel(prior).predict(decodes(8, 100)) == pytest.approx(prior(decodes(8, 100)))


def test_unmeasured_hardware_says_so_and_takes_the_shares_of_another() -> None:
    assert measured("h100") and not measured("mi300x")
    assert kernels_of("mi300x") is kernels_of("h100")

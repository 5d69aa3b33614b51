"""The roofline: never faster than the hardware's limits, near hand arithmetic where one limit rules, and monotone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.core.hardware import KNOWN, known_hardware
from headrace.core.model_spec import AttentionSpec, LatentSpec, LayerSpec, MlpSpec, ModelSpec, WeightTypes
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


def test_weights_of_eight_bits_halve_what_they_cost_and_a_cache_saves_less() -> None:
    gpu = known_hardware("h200")
    wide = Roofline(LLAMA_70B, Serving(gpu, 2)).parts(decodes(64, 8192))
    narrow = Roofline(LLAMA_70B, Serving(gpu, 2, "fp8", "fp8")).parts(decodes(64, 8192))
    assert 0.5 <= narrow.gemm / wide.gemm < 0.65
    # Half the bytes, at a smaller share of bandwidth: as measured.
    assert 0.5 < narrow.attention / wide.attention < 0.8


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


@given(
    ranks=st.sampled_from([1, 2, 4, 8]),
    stages=st.sampled_from([2, 3, 4, 8]),
    clients=st.integers(1, 512),
    context=st.integers(1, 8192),
)
def test_a_pipeline_is_no_faster_than_its_devices_and_waits_for_the_slowest_stage(
    ranks: int, stages: int, clients: int, context: int
) -> None:
    gpu = known_hardware("h100")
    serving = Serving(gpu, ranks, stages=stages)
    prior, work = Roofline(LLAMA_70B, serving), decodes(clients, context)
    layers = LLAMA_70B.num_parameters - 2 * 128256 * 8192
    # A token passes all stages, each reading its weights, and the cache is read by all devices together at best.
    least = layers * 2 / ranks / gpu.bandwidth + LLAMA_70B.kv_bytes(context) * clients / serving.devices / gpu.bandwidth
    parts = prior.parts(work)
    assert parts.seconds > least and parts.bubble >= 0
    assert prior(decodes(clients + stages, context)) >= parts.seconds


def test_a_lone_request_gains_nothing_from_a_pipeline_and_a_full_one_almost_all() -> None:
    gpu = known_hardware("h100")
    one, four = (Roofline(LLAMA_70B, Serving(gpu, 2, stages=stages)) for stages in (1, 4))
    assert one(decodes(1, 1000)) < four(decodes(1, 1000)) < 1.05 * one(decodes(1, 1000))
    # 512 decodes of 8,192 tokens are ruled by the cache, which four stages read at once.
    assert 1 / 4 < four(decodes(512, 8192)) / one(decodes(512, 8192)) < 1 / 3


def test_a_message_between_nodes_takes_longer_than_inside_one() -> None:
    gpu = known_hardware("h100")
    inside, crossing = Serving(gpu, 4, stages=2), Serving(gpu, 8, stages=2)
    assert not inside.crosses(0) and crossing.crosses(0) and Serving(gpu, 4, stages=4).crosses(1)
    (first, last), tensor = Roofline(LLAMA_70B, crossing).stages(prompt(8192)), kernels_of("h100").all_reduce
    reduced = 80 * tensor.seconds(8192 * 8192 * 2, 8, gpu.link)
    assert last.communication == pytest.approx(reduced)
    assert first.communication - reduced > 2 * 8192 * 8192 * 2 / 8 / gpu.nic


def test_weights_of_each_role_have_their_own_size_and_arithmetic() -> None:
    gpu = known_hardware("h100")
    mixed = WeightTypes("bf16", "fp8", "int4")

    def gemm(weights: str | WeightTypes, work: StepWork) -> float:
        return Roofline(LLAMA_70B, Serving(gpu, 8, weights)).parts(work).gemm

    few, many = decodes(1, 1), prompt(8192)
    assert gemm("int4", few) < gemm(mixed, few) < gemm("fp8", few) < gemm("bf16", few)
    # 4 bits are unpacked to 16, which many rows pay for.
    assert gemm("fp8", many) < gemm("bf16", many) < gemm("int4", many)
    assert LLAMA_70B.weight_bytes("int4") < LLAMA_70B.weight_bytes(mixed) < LLAMA_70B.weight_bytes("fp8")
    assert gemm(WeightTypes.of("fp8"), many) == gemm("fp8", many)


def test_a_few_rows_of_a_request_read_its_cache_once() -> None:
    prior = Roofline(LLAMA_70B, Serving(known_hardware("h100"), 4))
    one = prior.parts(decodes(64, 8192)).attention
    five = prior.parts(StepWork(320, 64, 0, 320 * 8192.0, 320, 320, longer=64)).attention
    assert 0.9 * one < five < 1.5 * one


SERVINGS = st.builds(
    Serving,
    st.sampled_from([KNOWN[name] for name in sorted(KNOWN)]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["bf16", "fp8", "int8", "int4", WeightTypes("bf16", "fp8", "int4")]),
    st.sampled_from(["bf16", "fp8"]),
    st.sampled_from([1, 2, 5]),
)


def mixed(clients: int, context: int, chunk: int, before: int) -> StepWork:
    """A chunk of a prompt among decodes."""
    pairs = chunk * (before + chunk / 2)
    return StepWork(clients + chunk, clients + 1, clients * context, pairs, clients + 1, clients + 1, 1)


@given(SERVINGS, st.integers(0, 256), st.integers(1, 8192), st.integers(2, 8192), st.integers(0, 65536))
def test_more_of_anything_takes_no_less_and_arithmetic_has_its_floor(
    serving: Serving, clients: int, context: int, chunk: int, before: int
) -> None:
    prior = Roofline(LLAMA_70B, serving)
    seconds = prior(mixed(clients, context, chunk, before))
    assert prior(mixed(clients, context, chunk, before + 100)) >= seconds
    assert prior(mixed(clients, context + 1, chunk, before)) >= seconds
    assert prior(mixed(clients, context, chunk + serving.stages, before)) >= seconds
    fastest = max(rate for _, rate in serving.hardware.peaks)
    layers = LLAMA_70B.num_parameters - 2 * 128256 * 8192
    assert seconds > 2 * layers * (clients + chunk) / fastest / serving.devices


@given(SERVINGS, st.integers(1, 6), st.integers(64, 4096))
def test_a_prompt_in_chunks_takes_no_less_than_whole(serving: Serving, chunks: int, size: int) -> None:
    prior = Roofline(LLAMA_70B, serving)
    whole = sum(part.seconds for part in prior.stages(prompt(chunks * size)))
    parts = [StepWork(size, 1, 0, size * (i * size + size / 2), 1, 1) for i in range(chunks)]
    assert sum(part.seconds for one in parts for part in prior.stages(one)) >= whole * (1 - 1e-9)


@given(SERVINGS, st.integers(1, 512), st.integers(1, 8192))
def test_one_stage_is_the_sum_of_its_parts_and_stages_share_the_layers(
    serving: Serving, clients: int, context: int
) -> None:
    one = Roofline(LLAMA_70B, Serving(serving.hardware, serving.ranks, serving.weights, serving.cache))
    work = decodes(clients, context)
    (alone,) = one.stages(work)
    assert one(work) == alone.seconds and alone.bubble == 0
    several = Roofline(LLAMA_70B, serving).stages(work)
    for name in ("gemm", "attention", "elementwise"):
        assert sum(getattr(part, name) for part in several) == pytest.approx(getattr(alone, name))

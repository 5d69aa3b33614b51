"""The planner's search: never below what arithmetic, bandwidth and memory allow, more for more, the same each time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, ModelError
from headrace.plan.answer import Plan
from headrace.plan.asking import ask
from headrace.plan.search import plan


def answer(model: str = "llama-3-8b", gpu: str = "h100", **asked: object) -> Plan:
    defaults: dict[str, object] = {"qps": 100.0, "max_pp": 1, "pools": "unified", "max_num_batched_tokens": 2048}
    return plan(ask(model, gpu, **(defaults | asked), simulate=False))  # type: ignore[arg-type]


def test_a_million_requests_a_second_need_more_gpus_than_their_arithmetic() -> None:
    found = plan(ask("llama-3-70b", "a100", qps=1.4e6, input_len=200, output_len=200, simulate=False))
    assert found.gpus > 1.4e6 * 400 * 2 * 70.6e9 / 312e12
    assert found.nodes >= found.gpus / 8
    assert found.cost_per_hour == pytest.approx(found.gpus * 1.8)
    assert found.cost_per_million == pytest.approx(found.cost_per_hour / (1.4e6 * 200 * 3600 / 1e6))


@settings(max_examples=12)
@given(
    qps=st.floats(0.01, 1e6),
    lengths=st.tuples(st.integers(1, 4000), st.integers(1, 1000)),
    gpu=st.sampled_from(["a100", "h100", "mi300x"]),
)
def test_no_answer_is_below_a_floor(qps: float, lengths: tuple[int, int], gpu: str) -> None:
    found = answer(gpu=gpu, qps=qps, input_len=lengths[0], output_len=lengths[1], slo_ttft_ms=5000)
    assert found.gpus >= max(found.details["floors_gpus"].values())
    assert sum(found.gpu_bytes.values()) == ask("llama-3-8b", gpu, qps=1).gpus[0].memory_bytes
    assert found.ttft["p50"] <= found.ttft["p99"] <= 5000
    assert found.tpot["p50"] <= found.tpot["p99"] <= 50


@settings(max_examples=10)
@given(qps=st.floats(0.1, 1e5), more=st.floats(1.0, 4.0), slower=st.floats(1.0, 4.0))
def test_more_requests_or_less_time_never_cost_less(qps: float, more: float, slower: float) -> None:
    found = answer(qps=qps)
    assert answer(qps=qps * more).gpus >= found.gpus
    assert answer(qps=qps, slo_tpot_ms=50 * slower, slo_ttft_ms=1000 * slower).gpus <= found.gpus


def test_half_the_price_is_half_the_cost_and_the_same_answer_twice() -> None:
    whole, half = answer(price={"h100": 3.0}), answer(price={"h100": 1.5})
    assert half.cost_per_hour == whole.cost_per_hour / 2
    assert replace(half, cost_per_hour=0, cost_per_million=0, details={}, candidates=()) == replace(
        whole, cost_per_hour=0, cost_per_million=0, details={}, candidates=()
    )
    assert answer() == answer()


def test_the_cheapest_gpu_is_chosen_and_a_price_turns_the_choice() -> None:
    both = answer(gpu="h100,h200")
    assert both.cost_per_hour == min(answer(gpu=gpu).cost_per_hour for gpu in ("h100", "h200"))
    other = "h200" if both.gpu == "h100" else "h100"
    assert answer(gpu="h100,h200", price={both.gpu: 50.0}).gpu == other


def test_users_ask_as_often_as_they_think_and_wait() -> None:
    found = answer(qps=None, concurrent_users=10_000, think_time_s=30)
    rate = found.details["requests_per_s"]
    waiting = (found.ttft["p50"] + 200 * found.tpot["p50"]) / 1e3
    assert rate == pytest.approx(10_000 / (30 + waiting), rel=0.05)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"slo_tpot_ms": 1}, "slo_tpot_ms of 1 is below what one request alone takes.*bandwidth binds.*ask for"),
        ({"slo_ttft_ms": 1}, "slo_ttft_ms of 1 is below what one request alone takes.*ask for"),
        ({"model": "llama-3.1-405b", "precision": "bf16", "max_tp": 8}, "16 h100 hold them"),
        ({"input_len": 200_000}, "more than the 131,072 of llama-3-8b's context"),
        ({"qps": float("nan")}, "qps must be above 0"),
        ({"qps": -1.0}, "qps must be above 0"),
        ({"qps": 0.0}, "qps must be above 0"),
        ({"qps": 1e300}, "qps must be above 0 and at most 1e\\+12"),
        ({"output_len": 0}, "output_len must be at least 1"),
        ({"slo_percentile": 100}, "slo_percentile must be 50 to below 100"),
        ({"precision": "fp7"}, "precision must be one of .*got 'fp7'"),
        ({"kv_cache_dtype": "int2"}, "kv_cache_dtype must be one of bf16, fp8, int8, got 'int2'"),
        ({"price": {"a100": 1.0}}, "not among the GPUs"),
        ({"price": {"x": 1.0}}, "price must be one of a100, h100"),
        ({"price": {"h100": 0.0}}, "price of h100 must be above 0"),
        ({"concurrent_users": 5}, "give either qps or concurrent_users"),
        ({"gpu": "h1000"}, "the nearest is h100"),
        ({"gpu": ""}, "give at least one gpu"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(asked: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        answer(**asked)  # type: ignore[arg-type]


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(ModelError, match="nearest is llama-3-70b"):
        answer("llama-3-71b")


def test_what_only_costly_dtypes_serve_is_refused_with_their_names() -> None:
    with pytest.raises(ConfigError, match="ask for it with --precision int4"):
        answer("deepseek-v3", "l40s", max_pp=2, slo_ttft_ms=60_000, slo_tpot_ms=500)
    found = answer("deepseek-v3", "l40s", max_pp=2, slo_ttft_ms=60_000, slo_tpot_ms=500, precision="int4")
    assert found.details["pools"][0]["weights"] == "int4"

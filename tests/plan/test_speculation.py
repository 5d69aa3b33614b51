"""A small model that guesses for a large one, by hand: tokens of a step, memory, and how much sooner tokens come."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.models.published import published_model
from headrace.plan.asking import ask
from headrace.plan.memory import memory_of
from headrace.plan.question import Question
from headrace.plan.search import plan
from headrace.plan.speculation import what_it_brings
from headrace.plan.steady import Way
from headrace.policy.draft_model import DraftModel, layer_on_top
from headrace.policy.roofline import Serving

H100 = known_hardware("h100")
FOUR = Serving(H100, 4)


def pair(acceptance: float, **changes: Any) -> Question:
    asked = {"qps": 50, "num_speculative_tokens": 4, "speculative_model": "llama-3-8b", **changes}
    return ask("llama-3-70b", "h100", acceptance=acceptance, **asked)


@pytest.mark.parametrize(("acceptance", "tokens"), [(0.7, 2.7731), (0.85, 3.7086)])
def test_a_step_brings_the_accepted_tokens_and_one_more(acceptance: float, tokens: float) -> None:
    # 0.7 + 0.49 + 0.343 + 0.2401 = 1.7731 accepted ones, and the token after them.
    found = what_it_brings(pair(acceptance), Way(FOUR, 8192, 4, acceptance), 0)
    assert found["tokens_per_verified_step"] == pytest.approx(tokens, abs=1e-4)
    assert found["tokens_per_verified_step"] == found["accepted_per_verified_step"] + 1
    # Reading 141.1 GB over 4 x 3.35 TB/s takes 10.5 ms, and a fourth of 16.1 GB of the small model each of four times
    # 1.2 ms: with what the hosts and all-reduces add, a step of 16.5 ms becomes one of about 25.
    alone = found["alone"]
    assert 15 < alone["tpot_without_ms"] < 18
    assert 1.5 < tokens / alone["speedup"] < 1.7
    assert alone["tpot_ms"] * alone["speedup"] == pytest.approx(alone["tpot_without_ms"])
    assert alone["acceptance_length"] == pytest.approx(tokens, rel=0.12)
    assert found["draft_weights_per_gpu_bytes"] == 2 * 8_030_261_248 // 4
    assert found["draft_kv_per_token_bytes"] == 2 * 32 * 8 * 128 * 2  # 128 KiB beside the 320 of the 70B
    assert "not throughput at high load" in found["says"]


def test_the_gain_falls_as_requests_are_more() -> None:
    way = Way(FOUR, 8192, 4, 0.7)
    gains = [what_it_brings(pair(0.7), way, running)["at_the_load"]["speedup"] for running in (1, 32, 128)]
    assert gains == sorted(gains, reverse=True) and gains[0] > 1.6 and gains[-1] < 1.1


def test_who_finds_no_room_on_what_costs_least_is_said_to() -> None:
    # 72.7 GB of the 70B fit into 85.9 with a tenth kept free and 3 beside, 9.1 more of the 8B do not.
    one = Serving(H100, 1, weights="fp8", cache="fp8")
    assert memory_of(published_model("llama-3-70b"), one, 2048, pair(0.7).load) is not None
    found = what_it_brings(pair(0.7), Way(one, 2048, 0, 0.7), 8)
    assert "no room beside the model on 1 h100" in found["says"] and "alone" not in found
    assert found["num_speculative_tokens"] == 4


@pytest.mark.parametrize("running", [1, 32, 64, 128, 256])
@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5])
def test_who_guesses_badly_or_is_dear_costs_next_to_nothing(acceptance: float, running: int) -> None:
    way = Way(FOUR, 8192, 4, acceptance)
    assert what_it_brings(pair(acceptance), way, running)["at_the_load"]["speedup"] > 0.97


def test_memory_has_the_weights_of_who_guesses_and_what_it_keeps_of_each_request() -> None:
    load = pair(0.7).load
    without = memory_of(published_model("llama-3-70b"), FOUR, 2048, load)
    beside = memory_of(published_model("llama-3-70b"), FOUR, 2048, load, DraftModel(published_model("llama-3-8b")))
    assert without is not None and beside is not None
    assert beside.draft == 2 * 8_030_261_248 // 4 == without.cache - beside.cache
    assert sum(beside.parts().values()) == 80 * 2**30
    assert without.request == 400 * 320 * 1024 // 4 and beside.request == 400 * (320 + 128) * 1024 // 4


def test_a_layer_on_top_shares_the_embedding_and_the_head() -> None:
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024
    layer = attention + 3 * 8192 * 28672 + 2 * 8192 + 8192  # and the last norm
    assert layer_on_top(published_model("llama-3-70b")).weight_bytes("bf16") == 2 * layer


def test_a_plan_with_a_pair_is_simulated_and_says_what_it_brings() -> None:
    found = plan(
        ask(
            "llama-3-8b",
            "h100",
            qps=5,
            output_len=50,
            pools="unified",
            max_pp=1,
            max_tp=1,
            precision="bf16",
            num_speculative_tokens=3,
            acceptance=0.8,
            speculative_model="llama-3.2-1b",
            slo_tpot_ms=8.0,
        )
    )
    assert found.candidates[0]["simulated"] and found.candidates[0]["num_speculative_tokens"] == 3
    assert found.gpu_bytes["draft_weights"] == published_model("llama-3.2-1b").weight_bytes("bf16")
    assert found.details["simulation"]["at_capacity"][0]["tpot_ms"]["p99"] <= 8.2
    assert found.details["speculation"]["alone"]["speedup"] > 1.2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speculative_model": "qwen3-0.6b"}, "speculative_model must have the model's own 128256 tokens"),
        ({"num_speculative_tokens": 0}, "speculative_model needs num_speculative_tokens above 0"),
    ],
)
def test_what_cannot_guess_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        pair(0.7, **changes)

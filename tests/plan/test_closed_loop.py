"""Latency of a closed loop: what a replica holds, by hand arithmetic, and how latency grows with load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.models.published import published_model
from headrace.plan.closed_loop import VLLM, Latency, Load, Terms, clients_held, latency, queued_latency
from headrace.policy.roofline import Roofline, Serving

LLAMA = published_model("llama-3-70b")
FOUR = Serving(known_hardware("h100"), 4)
PRIOR = Roofline(LLAMA, FOUR)


def predicted(load: Load) -> Latency:
    return latency(Terms.of(PRIOR, load), load, VLLM)


def test_clients_that_four_h100_hold_of_llama_70b() -> None:
    # 4 x (0.9 x 80 GiB - 3 GB) less 141.1 GB of weights leave 156.1 GB: 0.9 of it at 320 KiB a token.
    whole, running = clients_held(LLAMA, FOUR, Load(64, 1024, 1024))
    assert whole == int(0.9 * 156.13e9 / (2048 * 327680)) == 209
    assert running == int(156.13e9 / (1536 * 327680)) == 310


def test_a_latent_cache_is_held_whole_by_every_rank() -> None:
    spec, gpu, load = published_model("deepseek-v3"), known_hardware("h200"), Load(1, 4096, 1024)
    assert clients_held(spec, Serving(gpu, 8, "fp8"), load)[0] < 400


def test_weights_that_do_not_fit_are_refused_with_both_sizes() -> None:
    with pytest.raises(
        ConfigError, match=r"141,107,412,992 bytes of bf16 weights do not fit into 74,309,411,328 usable"
    ):
        clients_held(LLAMA, Serving(known_hardware("h100")), Load(1, 10, 10))


@given(st.integers(1, 256), st.integers(1, 16384), st.integers(1, 8192))
def test_more_clients_and_longer_prompts_wait_longer(clients: int, prompt: int, answer: int) -> None:
    base = predicted(Load(clients, prompt, answer))
    for more in (Load(clients + 1, prompt, answer), Load(clients, prompt + 1, answer)):
        worse = predicted(more)
        assert worse.ttft >= base.ttft and worse.tpot >= base.tpot


@given(running=st.integers(1, 64), waiting=st.integers(0, 64))
def test_a_queue_adds_the_time_in_which_those_before_end(running: int, waiting: int) -> None:
    load = Load(running + waiting, 1024, 256)
    served, queued = predicted(Load(running, 1024, 256)), queued_latency(PRIOR, load, running, VLLM)
    # Little's law: clients = throughput x time that each takes.
    throughput = running / (served.ttft + 256 * served.tpot)
    assert queued.tpot == served.tpot
    assert throughput * (queued.ttft + 256 * queued.tpot) == pytest.approx(load.clients)

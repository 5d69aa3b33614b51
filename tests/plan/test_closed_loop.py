"""Latency of a closed loop: what a replica holds, by hand arithmetic, and how latency grows with load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.models.published import published_model
from headrace.plan.closed_loop import VLLM, Cycle, Latency, Load, Terms, clients_held, latency, queued_latency
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


def test_prompts_follow_one_another_through_a_pipeline() -> None:
    """Four stages take a lone prompt as long as one, and let the next in after about a fourth of it."""
    one, four = (Terms.of(Roofline(LLAMA, Serving(FOUR.hardware, 4, stages=n)), Load(8, 2048, 256)) for n in (1, 4))
    assert one.keeps == one.prompt < four.prompt < 1.1 * one.prompt
    assert 0.25 * four.prompt < four.keeps < 0.3 * four.prompt
    # Chunks of one prompt follow each other too: the last of three has left two slowest stages after the first.
    long = Terms.of(Roofline(LLAMA, Serving(FOUR.hardware, 4, stages=4)), Load(8, 3 * 8192, 256))
    assert long.prompt < 0.6 * Terms.of(PRIOR, Load(8, 3 * 8192, 256)).prompt
    assert long.keeps < long.prompt


def test_a_lone_client_meets_nobody() -> None:
    terms, load = Terms.of(PRIOR, Load(1, 1024, 128)), Load(1, 1024, 128)
    said = latency(terms, load, VLLM)
    decode = VLLM.kernels * terms.decode + VLLM.step + VLLM.request
    assert said.tpot == pytest.approx(decode)
    assert said.ttft == pytest.approx(VLLM.prompt * terms.prompt + VLLM.wait * decode)


@given(st.integers(1, 256), st.integers(1, 16384), st.integers(2, 8192))
def test_a_cycle_s_prompts_are_waited_for_once(clients: int, prompt: int, answer: int) -> None:
    load = Load(clients, prompt, answer)
    cycle = Cycle.of(Terms.of(PRIOR, load), load, VLLM)
    assert cycle.met + cycle.left == pytest.approx(max((clients - 1) * cycle.keeps, cycle.met))

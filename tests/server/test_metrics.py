"""Metrics by vLLM's names: the engine's gauges when scraped, and how requests ended."""

from __future__ import annotations

import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.fake_engine import FakeEngine, endless
from tests.server.serving import CHAT, MODEL, user

from headrace.engine.wire import Stats
from headrace.policy.histogram import HistogramCounts
from headrace.server import exposition


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            assert sample.labels["model_name"] == MODEL
            found[f"{sample.name} {sample.labels.get('finished_reason', '')}".strip()] = sample.value
    return found


async def test_engine_gauges_and_counters(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    def stats() -> Stats:
        return Stats(
            running=3, waiting=2, blocks_used=25, blocks_total=100, preemptions=1,
            prompt_tokens=500, generated_tokens=70, cached_tokens=40,
        )  # fmt: skip

    engine.stats = stats  # type: ignore[method-assign]
    found = await scrape(client)
    expected = {
        "headrace:num_requests_running": 3,
        "headrace:num_requests_waiting": 2,
        "headrace:kv_cache_usage_perc": 0.25,
        "headrace:num_preemptions_total": 1,
        "headrace:prompt_tokens_total": 500,
        "headrace:generation_tokens_total": 70,
        "headrace:prefix_cache_queries_total": 500,
        "headrace:prefix_cache_hits_total": 40,
    }
    assert {name: found[name] for name in expected} == expected


async def test_no_stream_waits_while_metrics_are_told(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(
        "headrace.server.scrape.exposition", lambda: threads.append(threading.current_thread()) or exposition
    )
    await scrape(client)
    assert threads and threading.current_thread() not in threads


async def test_waits_by_class_refusals_and_histograms(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    def stats() -> Stats:
        return Stats(
            waiting=3, waiting_tokens=90, waiting_by_priority={-1: 1, 2: 2}, predicted_wait=1.5, oldest_wait=7.0,
            preemptions_by_kind=[("swap", "priority", 2)],
            refused={"overloaded": 4}, latency_error=0.25, hits_by_tier={"device": 30, "disk": 10},
            queue_seconds=HistogramCounts((0.5, 1.0), (3, 2, 1), 9.0),
        )  # fmt: skip

    engine.stats = stats  # type: ignore[method-assign]
    text = (await client.get("/metrics")).text
    for line in (
        f'headrace:num_requests_waiting_by_priority{{model_name="{MODEL}",priority="-1"}} 1.0',
        f'headrace:num_requests_waiting_by_priority{{model_name="{MODEL}",priority="2"}} 2.0',
        f'headrace:num_tokens_waiting{{model_name="{MODEL}"}} 90.0',
        f'headrace:predicted_wait_seconds{{model_name="{MODEL}"}} 1.5',
        f'headrace:oldest_wait_seconds{{model_name="{MODEL}"}} 7.0',
        f'headrace:requests_refused_total{{code="overloaded",model_name="{MODEL}"}} 4.0',
        f'headrace:prefix_cache_hits_by_tier_total{{model_name="{MODEL}",tier="disk"}} 10.0',
        f'headrace:num_preemptions_by_kind_total{{cause="priority",kind="swap",model_name="{MODEL}"}} 2.0',
        f'headrace:step_time_prediction_error{{model_name="{MODEL}"}} 0.25',
        f'headrace:request_queue_time_seconds_bucket{{le="0.5",model_name="{MODEL}"}} 3.0',
        f'headrace:request_queue_time_seconds_bucket{{le="1.0",model_name="{MODEL}"}} 5.0',
        f'headrace:request_queue_time_seconds_bucket{{le="+Inf",model_name="{MODEL}"}} 6.0',
        f'headrace:request_queue_time_seconds_sum{{model_name="{MODEL}"}} 9.0',
        f'headrace:request_inference_time_seconds_count{{model_name="{MODEL}"}} 0.0',
    ):
        assert line in text.splitlines(), line


async def test_requests_by_how_they_ended(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await client.post(CHAT, json=user("hi"))
    await client.post(CHAT, json=user("hi", n=2, stream=True, stop="w"))
    engine.reply = endless
    await client.post(CHAT, json=user("hi", max_tokens=5))
    engine.fail_at = 2
    await client.post(CHAT, json=user("hi"))
    found = await scrape(client)
    assert found["headrace:request_success_total stop"] == 3
    assert found["headrace:request_success_total length"] == 1
    assert found["headrace:request_success_total error"] == 1
    assert found["headrace:request_success_total abort"] == 0
    assert found["headrace:time_to_first_token_seconds_count"] == 5
    assert found["headrace:e2e_request_latency_seconds_count"] == 4
    assert found["headrace:request_time_per_output_token_seconds_count"] == 5
    assert found["headrace:inter_token_latency_seconds_count"] == 13 + 7 + 7 + 4 + 1
    assert found["headrace:request_generation_tokens_sum"] == 14 + 8 + 8 + 5 + 2
    assert found["headrace:request_prompt_tokens_count"] == 5


async def test_refused_requests_are_not_counted(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await client.post(CHAT, json=user("hi", n=0))
    engine.refuse = lambda request: RuntimeError("x") if request.choice else None
    await client.post(CHAT, json=user("hi", n=2))
    found = await scrape(client)
    assert all(value == 0 for name, value in found.items() if name.startswith("headrace:request_success_total"))


async def test_a_dead_engine_leaves_the_rest(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await client.post(CHAT, json=user("hi"))
    engine.dead = True
    found = await scrape(client)
    assert found["headrace:request_success_total stop"] == 1
    assert "headrace:num_requests_running" not in found


async def test_a_counter_that_runs_backwards_hurts_nobody(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    def stats() -> Stats:
        return Stats(running=-1, prompt_tokens=-5, generated_tokens=-1, blocks_total=0)

    engine.stats = stats  # type: ignore[method-assign]
    assert (await scrape(client))["headrace:prompt_tokens_total"] == -5
    assert (await client.post(CHAT, json=user("hi", stream=True))).text.endswith("data: [DONE]\n\n")

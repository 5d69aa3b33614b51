"""EngineLoop over a real engine and a null device: many clients' requests at once, some of them aborted, give each
exactly its own tokens and leave nothing behind."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from headrace.core.config import Config
from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.engine.client import ProcessClient
from headrace.engine.client_protocol import HealthState
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.loop import EngineLoop
from headrace.engine.null_executor import Faults, NullExecutor, expected_tokens
from headrace.engine.wire import Ready

CAPACITY = Capacity(num_slots=8, block_size=16, num_blocks=(60,), windows=(None,), max_model_len=256, vocab_size=10**6)
CRASH = 999_999


class EngineThread:
    """An EngineHandle for an engine that never ends by itself."""

    def __init__(self, folder):
        self.folder = folder

    def exit_status(self):
        return None


@pytest.fixture(params=[1, 2])
async def client(request, tmp_path):
    config = Config(max_num_seqs=8, max_num_batched_tokens=64, pipeline_depth=request.param, max_queued_requests=100)
    engine = Engine(NullExecutor(CAPACITY, Faults(crash_token=CRASH)), config)
    ready = Ready(CAPACITY.max_model_len, CAPACITY.vocab_size, "null", 60, 16)
    loop = EngineLoop(engine, tmp_path, ready)
    thread = threading.Thread(target=loop.run)
    thread.start()
    connected = ProcessClient(EngineThread(tmp_path))
    await connected.start()
    yield connected
    await connected.shutdown()
    connected.close()
    thread.join(10)
    assert not thread.is_alive()


def make(index, prompt, max_tokens):
    params = SamplingParams(max_tokens=max_tokens)
    return Request(f"r{index}", prompt, params, max_tokens, seed=index)


async def collect(stream):
    """(tokens, finish reason)"""
    tokens, reason = [], None
    async for delta in stream:
        tokens += delta.token_ids
        reason = delta.finish_reason
    return tokens, reason


async def test_each_request_gets_its_own_tokens_and_nothing_stays(client):
    draw = random.Random(1)
    requests = [
        make(i, [draw.randrange(40) for _ in range(draw.randint(1, 60))], draw.randint(1, 40)) for i in range(80)
    ]

    async def one(request):
        stream = await client.add(request)
        if request.seed % 5 == 0:
            await asyncio.sleep(draw.random() / 50)
            await client.abort([request.request_id])
        return await collect(stream)

    for request, (tokens, reason) in zip(requests, await asyncio.gather(*map(one, requests)), strict=True):
        expected = expected_tokens(request, CAPACITY.vocab_size)
        if reason is FinishReason.LENGTH:
            assert tokens == expected
        else:
            assert reason is FinishReason.ABORT
            assert request.seed % 5 == 0
            assert tokens == expected[: len(tokens)]
    while sum(client.stats().finished.values()) < len(requests):
        await asyncio.sleep(0.01)
    stats = client.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


async def test_requests_and_steps_are_told_afterwards(client):
    request = make(0, [1, 2, 3], 5)
    await collect(await client.add(request))
    told = await client.inspect("r0", 3)
    assert [(r.request_id, r.state, r.generated_tokens) for r in told.requests] == [("r0", "finished", 5)]
    assert len(told.steps) == 3 and all(step.took_ms is not None for step in told.steps)
    both = await asyncio.gather(client.inspect("r0"), client.inspect(steps=1))
    assert [(len(told.requests), len(told.steps)) for told in both] == [(1, 0), (0, 1)]


async def test_what_can_never_run_is_refused_and_too_much_is_put_off(client):
    with pytest.raises(RequestError, match="1000000 is not a token id"):
        await client.add(make(0, [10**6], 1))
    with pytest.raises(RequestError, match="at most 256"):
        await client.add(make(1, [1] * 200, 100))
    added = await asyncio.gather(*(client.add(make(i, [1], 255)) for i in range(2, 202)), return_exceptions=True)
    refused = [error for error in added if isinstance(error, OverloadedError)]
    assert refused
    assert all(error.retry_after > 0 for error in refused)
    await client.abort([f"r{i}" for i in range(2, 202)])
    while client.stats().blocks_used:
        await asyncio.sleep(0.01)


async def test_a_step_that_raises_ends_the_request_at_fault_alone(client):
    good, bad = make(0, [1, 2, 3], 30), make(1, [4, CRASH, 5], 30)
    streams = [await client.add(good), await client.add(bad)]
    (tokens, reason), (_, ending) = await asyncio.gather(*map(collect, streams))
    assert (tokens, reason) == (expected_tokens(good, CAPACITY.vocab_size), FinishReason.LENGTH)
    assert ending is FinishReason.ERROR
    assert client.health().state is HealthState.HEALTHY

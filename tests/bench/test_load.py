"""A load is sent in order, on time, and at most so many at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace.bench.arrivals import Planned
from headrace.bench.load import run_load
from headrace.bench.outcome import Outcome, most_at_once


@pytest.mark.parametrize("most", [1, 3, None])
async def test_at_most_so_many_are_under_way(most):
    seen, done = [], []

    async def send(planned: Planned) -> Outcome:
        outcome = Outcome(begun=time.perf_counter())
        seen.append(planned.prompt)
        await asyncio.sleep(0.001)
        outcome.ended = time.perf_counter()
        outcome.output_tokens = planned.output_len
        return outcome

    planned = [Planned(0.0, f"p{i}", i) for i in range(12)]
    outcomes, seconds = await run_load(planned, send, max_concurrency=most, progress=done.append)
    assert seen == [one.prompt for one in planned]
    assert [outcome.output_tokens for outcome in outcomes] == list(range(12))
    assert sum(done) == 12 and seconds > 0
    assert most_at_once(outcomes) <= (most or 12)


async def test_none_is_sent_before_its_time():
    begun = time.perf_counter()

    async def send(planned: Planned) -> Outcome:
        return Outcome(begun=time.perf_counter(), ended=time.perf_counter())

    planned = [Planned(i * 0.01, "", 1) for i in range(5)]
    outcomes, _ = await run_load(planned, send, max_concurrency=None, progress=lambda count: None)
    assert all(outcome.begun - begun >= one.at for outcome, one in zip(outcomes, planned, strict=True))

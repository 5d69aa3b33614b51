"""Driving a real engine over a NullExecutor: right tokens, and nothing held when it ends, early or not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.latency import measure_latency
from headrace.bench.throughput import measure_throughput
from headrace.bench.workload import Shape, random_requests
from headrace.core.config import Config
from headrace.core.errors import RequestError
from headrace.engine.drive import drive
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.null_executor import NullExecutor, expected_tokens

CAPACITY = Capacity(num_slots=4, block_size=16, num_blocks=(40,), windows=(None,), max_model_len=128, vocab_size=500)


def engine() -> Engine:
    return Engine(NullExecutor(CAPACITY), Config(max_num_seqs=4, max_num_batched_tokens=64).resolve())


def on(under_test: Engine, seconds):
    return lambda requests: drive(under_test, requests, seconds)


def clock():
    return itertools.count().__next__


@given(st.integers(1, 9), st.integers(1, 60), st.integers(1, 40), st.integers(0, 1000))
def test_every_request_gets_its_own_tokens(count, length, output, seed):
    requests = random_requests(Shape(count, length, output, seed), CAPACITY.vocab_size)
    got: dict[str, list[int]] = {r.request_id: [] for r in requests}
    for deltas in drive(engine(), requests, clock()):
        for delta in deltas:
            got[delta.request_id] += delta.token_ids
    assert got == {r.request_id: expected_tokens(r, CAPACITY.vocab_size) for r in requests}


@given(st.integers(0, 30))
def test_leaving_early_frees_everything(steps):
    under_test = engine()
    run = drive(under_test, random_requests(Shape(6, 40, 20), CAPACITY.vocab_size), clock())
    for _ in itertools.islice(run, steps):
        pass
    run.close()
    assert not under_test.has_work
    stats = under_test.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_a_refused_request_leaves_nothing_behind():
    under_test = engine()
    requests = random_requests(Shape(2, 10, 10), CAPACITY.vocab_size) + random_requests(Shape(1, 200, 10, 1), 500)
    with pytest.raises(RequestError):
        list(drive(under_test, requests, clock()))
    assert not under_test.has_work


def test_measurements_run_on_it():
    ticks = itertools.count()

    def seconds() -> float:
        return float(next(ticks))

    throughput = measure_throughput(on(engine(), seconds), Shape(8, 20, 10), CAPACITY.vocab_size, seconds)
    assert throughput.requests == 8
    assert throughput.total_tokens_per_s == pytest.approx(3 * throughput.output_tokens_per_s)
    latency = measure_latency(on(engine(), seconds), Shape(1, 100, 10), CAPACITY.vocab_size, seconds)
    # Two steps of at most 64 prompt tokens, then one for each token.
    assert latency.ttft_ms > latency.tpot_ms > 0
    assert latency.max_stall_ms == pytest.approx(latency.itl_ms["p50"])

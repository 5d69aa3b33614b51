"""Where theory has an answer, the simulator has the same: a queue with one server, one request alone, a full batch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.policy.latency import StepWork
from headrace.simulate.asking import Asked
from headrace.simulate.simulator import Simulation, simulate
from headrace.workload.demand import Demand

ALONE = Asked("llama-3-8b", "h100", block_size=64, enable_prefix_caching=False).fleet()


def test_one_request_alone_takes_the_sum_of_its_steps() -> None:
    prompt, output, chunk = 10_000, 700, ALONE.max_num_batched_tokens
    pace = ALONE.pace()
    seconds = pace(StepWork(chunk, 1, 0, chunk * (chunk / 2), 0, 0, 1))
    rest = prompt - chunk
    seconds += pace(StepWork(rest, 1, 0, rest * (chunk + rest / 2), 1, 1, 1))
    first = seconds
    for i in range(output - 1):
        seconds += pace(StepWork(1, 1, prompt + i + 1, 0.0, 1, 1))
    run = Simulation([Demand(0.0, ((1, prompt),), output)], ALONE, "round-robin", seed=0)
    run.run()
    assert (run.ledger.entries[0].first, run.ledger.entries[0].last) == (first, seconds)


def test_requests_of_one_step_wait_as_in_a_queue_with_one_server() -> None:
    """M/D/1: requests come at random, each takes the same time, one is served at a time."""
    fleet = replace(ALONE, max_num_seqs=1)
    step = fleet.pace()(StepWork(300, 1, 0, 300 * 150, 1, 1, 1))
    busy, draw, at = 0.6, random.Random(5), 0.0
    demands = []
    for index in range(3000):
        at += draw.expovariate(busy / step)
        demands.append(Demand(at, ((index, 300),), 1))
    run = Simulation(demands, fleet, "round-robin", seed=0)
    run.run()
    # Lindley: each waits for what is left of the one before it.
    free = 0.0
    for index, demand in enumerate(demands):
        free = max(free, demand.at) + step
        assert run.ledger.entries[index].first == pytest.approx(free, rel=1e-9)
    waits = [entry.first - entry.at - step for entry in run.ledger.entries.values()]
    assert sum(waits) / len(waits) == pytest.approx(busy * step / (2 * (1 - busy)), rel=0.1)


def test_a_full_batch_gives_the_tokens_of_its_steps() -> None:
    slots, output = 16, 1500
    fleet = replace(ALONE, max_num_seqs=slots)
    result = simulate([Demand(0.0, ((index, 20),), output) for index in range(4 * slots)], fleet)
    step = fleet.pace()(StepWork(slots, slots, slots * (20 + output // 2), 0.0, slots, slots))
    assert result.output_tokens_per_s == pytest.approx(slots / step, rel=0.02)
    assert result.utilization == pytest.approx(1, abs=1e-6)

"""Loads: the same seed makes the same one, rates are met on average, traces keep their times and shared prefixes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.bench.arrivals import random_load, recorded_load
from headrace.workload.demand import Demand


def load(count=200, *, rate=10.0, burstiness=1.0, seed=0, prefix_len=0):
    return random_load(
        count, input_len=5, output_len=7, prefix_len=prefix_len, rate=rate, burstiness=burstiness, seed=seed
    )


def variation(planned):
    gaps = [b.at - a.at for a, b in pairwise(planned)]
    mean = sum(gaps) / len(gaps)
    return mean, (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean


def test_random_arrivals_have_the_rate_and_the_burstiness_that_was_asked():
    mean, spread = variation(load(4000))
    assert mean == pytest.approx(0.1, rel=0.1) and spread == pytest.approx(1.0, rel=0.1)
    mean, spread = variation(load(4000, burstiness=0.25))
    assert mean == pytest.approx(0.1, rel=0.15) and spread == pytest.approx(2.0, rel=0.15)
    assert {one.at for one in load(rate=float("inf"))} == {0.0}


def test_the_same_seed_makes_the_same_load_of_the_asked_lengths():
    assert load(seed=3) == load(seed=3) != load(seed=4)
    assert all(len(one.prompt.split()) == 5 and one.output_len == 7 for one in load())
    shared = load(prefix_len=3)
    assert len({tuple(one.prompt.split()[:3]) for one in shared}) == 1
    assert len({one.prompt for one in shared}) > 100


def test_a_trace_keeps_its_times_lengths_and_shared_beginnings():
    shared = ((1, 512), (2, 512))
    trace = [
        Demand(10.0, (*shared, (3, 6)), 500),
        Demand(12.0, (*shared, (9, 16)), 2),
        Demand(16.0, ((-2, 600),), 64),
    ]
    first, second, third = recorded_load(trace, speed=2.0, scale=32, seed=0)
    assert [first.at, second.at, third.at] == [0.0, 1.0, 3.0]
    assert [len(one.prompt.split()) for one in (first, second, third)] == [33, 33, 19]
    assert [first.output_len, second.output_len, third.output_len] == [15, 1, 2]
    assert first.prompt.split()[:32] == second.prompt.split()[:32]
    other = recorded_load(trace, speed=2.0, scale=32, seed=5)
    assert other[:2] == [first, second] and other[2].prompt != third.prompt

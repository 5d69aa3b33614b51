"""Rates of ops: the best of several profiles, gathered by name, held against the machine."""

from __future__ import annotations

import pytest

from headrace.bench.ops import least_times, op_rates


def test_the_least_time_of_each_op_counts():
    profiles = [[("norm", 5), ("linear", 90)], [("norm", 7), ("linear", 80)]]
    assert least_times(profiles) == [("norm", 5), ("linear", 80)]


def test_ops_are_gathered_by_what_works_call_them_slowest_first():
    times = [("norm", 1_000_000), ("linear", 2_000_000), ("linear", 3_000_000), ("linear", 4_000_000)]
    works = {"linear": [("up", 100, 10), ("down", 200, 20), ("up", 100, 10)]}
    rates = op_rates(times, works)
    assert list(rates) == ["up", "down", "norm"]
    assert (rates["up"].time_ms, rates["up"].operations, rates["up"].bytes) == (6.0, 200, 20)


def test_a_rate_is_a_share_of_the_ceilings():
    (rate,) = op_rates([("linear", 1_000_000)], {"linear": [("up", 4_000_000, 1_000_000)]}).values()
    report = rate.report(int8_per_s=8e9, read_bytes_per_s=4e9)
    assert report == pytest.approx(
        {"time_ms": 1.0, "gop_per_s": 4.0, "of_int8_ceiling": 0.5, "gb_per_s": 1.0, "of_read_ceiling": 0.25}
    )


def test_an_op_without_counted_work_shows_its_time_alone():
    (rate,) = op_rates([("norm", 2_000_000)], {}).values()
    assert rate.report(1.0, 1.0) == {"time_ms": 2.0}

"""The report on outcomes that were made by hand."""

from __future__ import annotations

import pytest

from headrace.bench.outcome import Bounds, Outcome, most_at_once, report

FAST = Outcome(0.0, 2.0, [0.5, 1.0, 2.0], prompt_tokens=10, output_tokens=4)
SLOW = Outcome(1.0, 9.0, [5.0, 9.0], prompt_tokens=20, output_tokens=2, late=0.5)
FAILED = Outcome(1.5, 1.6, error="HTTP 429")


def test_rates_latencies_and_the_longest_stall():
    found = report([FAST, SLOW, FAILED], 10.0, Bounds(), (50, 99))
    assert (found["completed"], found["failed"], found["errors"]) == (2, 1, {"HTTP 429": 1})
    assert (found["input_tokens"], found["output_tokens"], found["output_tokens_per_s"]) == (30, 6, 0.6)
    assert found["ttft_ms"] == {"mean": 2250.0, "p50": 500.0, "p99": 4000.0}
    assert found["tpot_ms"] == {"mean": 2250.0, "p50": 500.0, "p99": 4000.0}
    assert found["itl_ms"]["p50"] == 1000.0
    assert (found["max_stall_ms"], found["max_concurrency"]) == (4000.0, 3)
    assert found["client_late_ms"]["p99"] == 500.0
    assert found["e2e_ms"]["mean"] == 5000.0


@pytest.mark.parametrize(
    ("bounds", "good"),
    [(Bounds(), 2), (Bounds(500), 1), (Bounds(499), 0), (Bounds(9000, 500), 1), (Bounds(None, 4000), 2)],
)
def test_goodput_counts_what_is_within_every_bound(bounds, good):
    found = report([FAST, SLOW, FAILED], 10.0, bounds, (50,))
    assert (found["goodput_per_s"], found["goodput_share"]) == (good / 10, good / 3)


def test_nothing_answered_is_a_report_too():
    found = report([FAILED], 1.0, Bounds(), (50,))
    assert (found["completed"], found["ttft_ms"], found["max_stall_ms"]) == (0, None, 0.0)


def test_one_that_ends_as_another_begins_is_not_beside_it():
    assert most_at_once([Outcome(0.0, 1.0), Outcome(1.0, 2.0), Outcome(1.5, 3.0)]) == 2

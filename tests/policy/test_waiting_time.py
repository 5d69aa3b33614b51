"""Predicted waits follow what waits, what requests were like, and the price of their tokens."""

from __future__ import annotations

import pytest

from headrace.policy.backlog import Backlog
from headrace.policy.latency import LatencyModel, LinearPrior
from headrace.policy.waiting_time import WaitingTime

PRICES = LinearPrior(step=0.0, token=0.5, request=0.0, context=0.0, pair=0.0, row=0.0)


def predictor(slots=2):
    return WaitingTime(LatencyModel(PRICES), slots=slots, budget=64)


def predict(waiting_time, backlog, *, running, priority=0):
    return waiting_time.predict(backlog.ahead(priority, ""), running=running, waiting=backlog.requests)


def test_a_free_slot_that_nobody_waits_for_is_there_now():
    assert predict(predictor(), Backlog(), running=1) == 0


def test_it_is_the_price_of_what_goes_before_and_of_one_that_ends():
    waiting_time, backlog = predictor(), Backlog()
    waiting_time.ended(10, 30)
    one = (10 + 30) * 0.5
    assert predict(waiting_time, backlog, running=2) == pytest.approx(one)
    backlog.add(0, "", 10, 30)
    assert predict(waiting_time, backlog, running=2) == pytest.approx(2 * one)
    assert predict(waiting_time, backlog, running=2, priority=-1) == pytest.approx(one)
    backlog.add(-1, "", 10, 4)
    assert predict(waiting_time, backlog, running=2, priority=-1) == pytest.approx(one + (10 + 4) * 0.5)


def test_outputs_that_nobody_has_seen_count_for_nothing():
    waiting_time, backlog = predictor(), Backlog()
    backlog.add(0, "", 10, 100_000)
    assert predict(waiting_time, backlog, running=2) == pytest.approx((10 + 1) * 0.5)


def test_where_memory_is_short_fewer_run_together():
    """A step of few requests costs more for each."""
    slow_steps = LinearPrior(step=8.0, token=0.0, request=0.0, context=0.0, pair=0.0, row=0.0)
    waiting_time, backlog = WaitingTime(LatencyModel(slow_steps), slots=8, budget=64), Backlog()
    waiting_time.ended(1, 10)
    backlog.add(0, "", 1, 10)
    full = predict(waiting_time, backlog, running=8)
    assert predict(waiting_time, backlog, running=2) > 3 * full


def test_it_forgets_what_requests_used_to_be_like():
    waiting_time = predictor()
    waiting_time.ended(1000, 1000)
    for _ in range(100):
        waiting_time.ended(10, 10)
    assert waiting_time.of_one() == pytest.approx(20 * 0.5, rel=0.1)

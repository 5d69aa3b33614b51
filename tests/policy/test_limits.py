"""Limits as the operator writes them, and token buckets: never more than size + rate * w in any time w, and as good as
never taken once given back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.policy.limits import Limits, TenantLimits, TokenBucket

STEPS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans(), st.integers(0, 60)), min_size=1, max_size=40
)
"""(time until the request, its cost, whether it is used, how long until one that is not is given back)"""


@given(STEPS, st.integers(1, 20), st.sampled_from([0.25, 0.5, 1.0, 3.0]))
def test_no_window_sees_more_than_size_and_rate_allow_whatever_is_given_back(steps, size, rate):
    bucket = TokenBucket(size, rate, 0.0)
    now, used, unused = 0.0, [], []
    for pause, cost, is_used, back_after in steps:
        now += pause
        for due in sorted(unused):
            if due[0] <= now:
                unused.remove(due)
                bucket.give_back(due[1], due[2], due[0])
        wait = bucket.wait(cost, now)
        assert (wait == float("inf")) == (cost > size)
        if wait == 0:
            bucket.take(cost, now)
            if is_used:
                used.append((now, cost))
            else:
                unused.append((now + back_after, cost, now))
    for first in range(len(used)):
        for last in range(first, len(used)):
            window = used[last][0] - used[first][0]
            assert sum(cost for _, cost in used[first : last + 1]) <= size + rate * window + 1e-6


@given(st.lists(st.integers(1, 10), min_size=1, max_size=30), st.sampled_from([0.1, 0.3, 1 / 3, 7.0]))
def test_who_waits_as_long_as_was_said_is_served(costs, rate):
    bucket = TokenBucket(10, rate, 0.0)
    now = 0.0
    for cost in costs:
        now += bucket.wait(cost, now)
        assert bucket.wait(cost, now) == 0
        bucket.take(cost, now)


def test_a_debt_is_paid_before_anything_is_taken():
    bucket = TokenBucket.per_minute(60, 0.0)
    bucket.take(90, 0.0)
    assert bucket.wait(1, 0.0) == 31
    assert bucket.wait(1, 31.0) == 0


def test_what_is_given_back_at_once_is_as_if_never_taken():
    bucket = TokenBucket(10, 1.0, 0.0)
    bucket.take(10, 5.0)
    bucket.give_back(10, 5.0, 5.0)
    assert bucket.wait(10, 5.0) == 0


def test_a_clock_that_stands_still_or_goes_back_brings_nothing():
    bucket = TokenBucket(2, 1.0, 10.0)
    bucket.take(2, 10.0)
    assert bucket.wait(1, 10.0) == 1
    assert bucket.wait(1, 3.0) == 1


def test_limits_by_tenant():
    limits = msgspec.json.decode(
        b'{"default": {"requests_per_minute": 6}, "tenants": {"alice": {"concurrent_requests": 2}}}', type=Limits
    )
    assert limits.of("alice") == TenantLimits(concurrent_requests=2)
    assert limits.of("bob") == TenantLimits(requests_per_minute=6)
    assert Limits().of("") == TenantLimits()


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="tokens_per_minute must be at least 1, got 0"):
        TenantLimits(tokens_per_minute=0)

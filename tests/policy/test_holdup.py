"""The clocks of what holds up the queue, against sums over the same intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.holdup import Holdup, HoldupClock, holdup


@given(st.lists(st.tuples(st.sampled_from(Holdup), st.integers(0, 9)), max_size=40), st.integers(0, 40))
def test_seconds_by_reason_are_those_since_then(steps, watched_from):
    clock, now, expected = HoldupClock(), 0, dict.fromkeys(Holdup, 0)
    current, read = Holdup.STEP, clock.read(0.0)
    for number, (reason, seconds) in enumerate(steps):
        if number == watched_from:
            read, expected = clock.read(now), dict.fromkeys(Holdup, 0)
        now += seconds
        expected[current] += seconds
        clock.hold(reason, now)
        current = reason
        assert clock.reason is reason
    now += 3
    expected[current] += 3
    if watched_from < len(steps):
        assert clock.since(read, now) == {reason: spent for reason, spent in expected.items() if spent}


@pytest.mark.parametrize(
    ("queued", "parked", "free_slots", "tokens_left", "reason"),
    [
        (0, 0, 0, False, Holdup.STEP),
        (0, 1, 0, False, Holdup.PREFIX),
        (3, 1, 0, True, Holdup.SLOTS),
        (3, 0, 1, False, Holdup.TOKENS),
        (3, 0, 1, True, Holdup.BLOCKS),
    ],
)
def test_the_first_thing_that_is_short_is_the_reason(queued, parked, free_slots, tokens_left, reason):
    found = holdup(queued=queued, parked=parked, free_slots=free_slots, tokens_left=tokens_left)
    assert found is reason

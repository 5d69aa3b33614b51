"""A pulse tells a long step from a stopped process, and a stuck step from a long one."""

from __future__ import annotations

import time

import pytest

from headrace.engine.heartbeat import SILENT_SECONDS, STALLED_SECONDS, Heartbeat, Pulse


@pytest.fixture
def pair(tmp_path):
    heart = Heartbeat(tmp_path / "heartbeat")
    yield heart, Pulse(tmp_path / "heartbeat")
    heart.close()


def test_an_idle_engine_is_well_as_long_as_it_beats(pair):
    _, pulse = pair
    now = time.monotonic()
    assert pulse.check(now) == (True, "")
    good, reason = pulse.check(now + SILENT_SECONDS + 2)
    assert not good
    assert "no sign of life" in reason


def test_beats_go_on_during_a_step_and_a_step_may_take_long(pair):
    heart, pulse = pair
    began = time.monotonic()
    heart.step_began(began - STALLED_SECONDS / 2)
    assert pulse.check(began) == (True, "")


def test_a_step_that_never_ends_is_seen(pair):
    heart, pulse = pair
    now = time.monotonic()
    heart.step_began(now - STALLED_SECONDS - 1)
    good, reason = pulse.check(now)
    assert not good
    assert "current step" in reason
    heart.step_ended()
    assert pulse.check(now) == (True, "")

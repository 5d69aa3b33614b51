"""Which prompts stay on one node, and where the others go."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.policy.disaggregation import Disaggregation
from headrace.policy.replica import Load, Loads, Speed
from headrace.policy.routing import Ask

SPEED = Speed(token=1e-4, step=0.01, request=1e-4)


def policy(**settings):
    return Disaggregation(3, 100, 16, SPEED, **{"min_tokens": 512, "answer": 100, **settings})


def names(count, start=0):
    return [(start, i) for i in range(count)]


def test_what_is_short_stays_where_it_is_answered_soonest():
    loads = Loads(3)
    loads.report(0, Load(waiting=2, tokens=3000))
    assert policy().stays(Ask(511), loads) == 1
    assert policy().stays(Ask(512), loads) is None
    assert policy().stays(Ask(512), loads, always=True) == 1
    assert policy(min_tokens=0).stays(Ask(1), loads) is None
    loads.up[1] = False
    assert policy().stays(Ask(511), loads) == 2
    loads.up[:] = False
    assert policy().stays(Ask(511), loads) is None


def test_what_is_mostly_cached_stays_where_it_is():
    chosen, loads = policy(), Loads(3)
    chosen.sent(2, names(40))
    assert chosen.stays(Ask(1000, names(62)), loads) == 2
    assert chosen.stays(Ask(1200, names(75)), loads) is None
    chosen.forget(2)
    assert chosen.stays(Ask(1000, names(62)), loads) is None


def test_the_receiver_is_the_nearest_unless_it_is_crowded():
    loads, token_s, latency = Loads(3), np.array([3e-6, 1e-6, 1e-6]), np.array([0.0, 1e-5, 0.0])
    chosen = policy()
    assert chosen.receiver(Ask(1000), loads, token_s, latency) == 2
    loads.report(2, Load(running=1, blocks_used=1, blocks_total=100))
    assert chosen.receiver(Ask(1000), loads, token_s, latency) == 1
    # What is cached does not travel.
    chosen.sent(0, names(60))
    assert chosen.receiver(Ask(1000, names(62)), loads, token_s, latency) == 0


def test_nobody_receives_without_room():
    loads, alike, chosen = Loads(3), np.zeros(3), policy()
    full = Load(running=3, blocks_used=95, blocks_total=100)
    for replica in range(3):
        loads.report(replica, full)
    assert chosen.receiver(Ask(80), loads, alike, alike) is None
    assert chosen.receiver(Ask(64), loads, alike, alike) == 0
    # One that has nothing to do takes whatever can be taken at all.
    loads.report(1, Load(blocks_total=100))
    assert chosen.receiver(Ask(100_000), loads, alike, alike) == 1
    loads.up[1] = False
    assert chosen.receiver(Ask(80), loads, alike, alike) is None


def test_a_part_of_a_fleets_loads_is_seen_and_told_as_the_whole():
    loads = Loads(4)
    part = loads.part(1, 3)
    loads.report(2, Load(running=5))
    loads.up[1] = False
    assert len(part) == 2 and part.requests.tolist() == [0, 5] and part.up.tolist() == [False, True]
    assert pytest.approx(5) == loads.requests.sum()

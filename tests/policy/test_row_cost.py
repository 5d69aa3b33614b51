"""What a step takes by its rows, as it is learnt from measurements that stall and drift."""

from __future__ import annotations

import random

import pytest

from headrace.policy.latency import LatencyModel, StepWork
from headrace.policy.row_cost import MOST_ROWS, RowCost


def step(rows):
    return StepWork(rows, rows, 0, 0.0, rows, rows)


def learnt(times, drafted=None, rounds=12, pace=lambda n: 1.0):
    cost = RowCost(LatencyModel())
    for n in range(rounds):
        for rows, seconds in times.items():
            cost.observe(step(rows), seconds * pace(n))
        for rows, seconds in (drafted or {}).items():
            cost.observe(step(rows), seconds * pace(n), drafted=True)
    return cost


def test_it_is_what_was_measured_and_a_line_between():
    cost = learnt({1: 4e-3, 4: 7e-3})
    assert [cost.seconds(rows) for rows in (1, 2, 4)] == pytest.approx([4e-3, 5e-3, 7e-3], rel=0.02)
    assert cost.seconds(8) > 7e-3


def test_guesses_have_a_cost_of_their_own():
    cost = learnt({1: 4e-3, 2: 5e-3}, {2: 6e-3, 9: 13e-3})
    assert cost.seconds(2) == pytest.approx(5e-3, rel=0.02)
    assert cost.relative(1, 8)[1] == pytest.approx(1.5, rel=0.02)
    assert cost.relative(1, 8)[8] == pytest.approx(13 / 4, rel=0.02)


def test_what_was_never_tried_is_hoped_to_cost_less_than_the_line_says():
    cost = learnt({1: 4e-3}, {2: 5e-3, 9: 19e-3})
    assert 5e-3 < cost.seconds(4, drafted=True) < 5e-3 + 2 * 2e-3


def test_it_does_not_fall_with_rows():
    cost = learnt({1: 4e-3}, {2: 5e-3, 3: 8e-3, 4: 6e-3, 5: 9e-3}, rounds=40)
    taken = [cost.seconds(rows, drafted=True) for rows in range(2, 6)]
    assert taken == pytest.approx([5e-3, 7e-3, 7e-3, 9e-3], rel=0.02)
    assert taken == sorted(taken)


def test_a_stall_does_not_count_even_at_the_first_try():
    cost = learnt({1: 4e-3})
    cost.observe(step(3), 200e-3, drafted=True)
    assert cost.seconds(3, drafted=True) < 20e-3
    for _ in range(6):
        cost.observe(step(1), 4e-3)
        cost.observe(step(3), 6e-3, drafted=True)
    assert cost.relative(1, 2)[2] == pytest.approx(1.5, rel=0.1)


def test_stalls_that_never_end_carry_no_ratio_away():
    """Every step varies, more often upwards; guesses are measured at first and at times, plain steps all the time."""
    noise = random.Random(5)
    cost = RowCost(LatencyModel())
    for n in range(4000):
        slow = 1.0 + 0.05 * noise.expovariate(1.0) + (noise.random() < 0.03) * 2.0
        cost.observe(step(1), 4e-3 * slow)
        if n < 30 or n % 100 == 0:
            cost.observe(step(4), 6e-3 * slow, drafted=True)
    assert cost.relative(1, 3)[3] == pytest.approx(1.5, rel=0.1)


def test_a_slow_spell_changes_no_ratio():
    """All steps take three times as long for a while, and guesses are measured then alone."""
    cost = learnt({1: 4e-3}, {3: 6e-3})
    for n in range(300):
        cost.observe(step(1), 12e-3)
        if n > 30:
            cost.observe(step(3), 18e-3, drafted=True)
    assert cost.relative(1, 2)[2] == pytest.approx(1.5, rel=0.05)
    assert cost.seconds(1) == pytest.approx(12e-3, rel=0.1)


def test_the_less_a_kind_is_known_the_sooner_it_is_compared_with_a_step_without_guesses():
    cost = RowCost(LatencyModel())
    runs = []
    for _ in range(20):
        cost.observe(step(1), 4e-3)
        assert cost.knows(1)
        runs.append(0)
        while cost.knows(1):
            cost.observe(step(3), 6e-3, drafted=True)
            runs[-1] += 1
    assert runs[:2] == [1, 1]
    assert runs == sorted(runs)
    assert 8 <= runs[-1] <= 16


def test_a_slow_spell_in_which_only_guesses_are_made_changes_no_ratio():
    """As in a loop: sixteen steps with guesses for one without, while the machine is slower and slower."""
    cost = learnt({1: 4e-3}, {9: 12e-3}, rounds=30)
    for n in range(400):
        slow = 1.01 ** min(n, 100)
        if n % 16:
            cost.observe(step(9), 12e-3 * slow, drafted=True)
        else:
            cost.observe(step(1), 4e-3 * slow)
    assert cost.relative(1, 8)[8] == pytest.approx(3, rel=0.05)


def test_steps_of_nearly_as_many_rows_are_taken_together():
    cost = learnt({32: 32e-3}, {33 + n: 1e-3 * (33 + n) for n in range(8)})
    assert [rows for rows, guesses, _, _ in cost.measured() if guesses] == [pytest.approx(37, abs=2)]
    assert cost.relative(32, 8)[8] == pytest.approx(40 / 32, rel=0.05)


def test_steps_far_larger_than_any_that_is_known_are_not_tried():
    cost = learnt({1: 4e-3, 32: 36e-3})
    assert (cost.reach(1), cost.reach(32)) == (1, 32)
    cost.observe(step(60), 60e-3, drafted=True)
    assert 2 * 60 - 32 <= cost.reach(32) <= 2 * 64 - 32
    assert cost.reach(MOST_ROWS - 1) == 1


def test_what_guesses_took_is_forgotten_where_none_are_made():
    cost = learnt({1: 4e-3}, {2: 40e-3})
    assert cost.relative(1, 1)[1] > 5
    for _ in range(4000):
        cost.observe(step(1), 4e-3)
    assert cost.relative(1, 1)[1] < 3


def test_only_steps_that_decode_count():
    cost = RowCost(LatencyModel())
    cost.observe(StepWork(64, 1, 0, 2048.0, 1, 1, 1), 1.0)
    cost.observe(step(MOST_ROWS + 1), 1.0)
    cost.observe(step(0), 1.0)
    assert cost.measured() == []
    assert not cost.knows(1)
    assert cost.knows(MOST_ROWS + 1)
    cost.observe(step(1), 4e-3)
    assert cost.measured() == [(1, False, pytest.approx(4e-3), 0)]
    assert cost.knows(1)

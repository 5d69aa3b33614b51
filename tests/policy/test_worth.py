"""What guesses are worth to all who share a step."""

from __future__ import annotations

import math

import pytest

from headrace.policy.speculation import Proposal
from headrace.policy.worth import LEAST_ODDS, how_many, least_odds, ranked


def line(most, row):
    """A step that takes so much longer for each guess."""
    return [1 + row * guesses for guesses in range(most + 1)]


def proposal(*odds):
    return Proposal([7] * len(odds), odds)


def test_the_best_come_first_and_of_each_its_beginning():
    every = ranked([proposal(0.9, 0.5, 0.01), proposal(0.8), proposal()], [1.0, 0.5, 1.0])
    assert [n for _, n in every] == [0, 1, 0]
    assert [worth for worth, _ in every] == pytest.approx([math.log(1.9), math.log(1.4), math.log(2.4 / 1.9)])
    assert every == sorted(every, reverse=True)


def test_alone_a_request_gets_what_brings_it_the_most_tokens_a_second():
    odds = [0.9**n for n in range(1, 9)]
    for row in (0.05, 0.2, 0.5, 0.8):
        taken = line(8, row)
        rates = [(1 + sum(odds[:count])) / taken[count] for count in range(9)]
        assert how_many(ranked([proposal(*odds)], [1.0]), taken, 1) == rates.index(max(rates))


def test_one_that_loops_holds_up_others_no_more_than_it_gains():
    loop = ranked([proposal(*[0.98**n for n in range(1, 9)])], [1.0])
    assert how_many(loop, line(8, 0.02), 4) == 8
    # Eleven tokens in 2.6 times the time are more a second, but the other three would take 2.6 times as long.
    assert (4 + 7.3) / 2.6 > 4
    assert how_many(loop, line(8, 0.2), 4) == 0
    everyone = ranked([proposal(*[0.98**n for n in range(1, 9)])] * 4, [1.0] * 4)
    assert how_many(everyone, line(32, 0.2), 4) > 0


@pytest.mark.parametrize("requests", [1, 3, 16])
@pytest.mark.parametrize("row", [0.01, 0.07, 0.3])
def test_nobody_is_asked_whose_guesses_cannot_be_worth_it_and_everybody_whose_can(requests, row):
    most = max(8, requests)
    taken = line(most, row)
    least = least_odds(taken, requests, requests)
    assert least >= LEAST_ODDS
    for odds, worth_it in ((least * 0.99, False), (least * 1.25, True)):
        if LEAST_ODDS < odds < 1:
            several = [
                ranked([proposal(*[odds] * (count // among))] * among, [1.0] * among)
                for among in range(1, requests + 1)
                for count in range(among, most + 1, among)
            ]
            assert any(how_many(every, taken, requests) for every in several) is worth_it

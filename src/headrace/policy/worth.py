"""What guesses are worth in a step that several requests share. All of them wait for it alike, while each gains by its
own guesses alone; so what counts is how many times as fast each gets on, multiplied over all (proportional fairness:
Kelly, 1998). A sum of tokens a second would let one request that loops hold up all others for little; so it may, only
as far as it gains more than they lose together. For a request alone, the two are the same.
"""

from collections.abc import Sequence
from math import exp, log, log1p
from operator import itemgetter
from typing import Protocol

LEAST_ODDS = 0.05
"""Guesses that are this unlikely are not computed even where a row costs nothing that can be measured."""
_GAIN = log(1.03)
"""What each request must gain in the mean: the cheapest of what was measured is seldom as cheap as it looked."""
_MOST = 100.0


class Guesses(Protocol):
    @property
    def odds(self) -> Sequence[float]: ...


def ranked(proposals: Sequence[Guesses], trusts: Sequence[float]) -> list[tuple[float, int]]:
    """What one guess more is worth, the best first, and whose it is. trusts: what the odds of each one's next token are
    worth. As odds fall along a proposal and the sort is stable, what is taken of each is its beginning."""
    every = []
    for n, (proposal, trust) in enumerate(zip(proposals, trusts, strict=True)):
        worth, tokens = 1.0, 1.0
        for odds in proposal.odds:
            worth *= trust
            if odds * worth < LEAST_ODDS:
                break
            every.append((log1p(odds * worth / tokens), n))
            tokens += odds * worth
    if len(proposals) > 1:
        every.sort(key=itemgetter(0), reverse=True)
    return every


def how_many(every: Sequence[tuple[float, int]], taken: Sequence[float], requests: int) -> int:
    """Of the best guesses, as many as are worth most to so many requests. taken: how many times as long the step takes
    with 0, 1, ... of them."""
    gained = 0.0
    best, most = requests * _GAIN, 0
    for count, (worth, _) in enumerate(every, start=1):
        gained += worth
        gain = gained - requests * log(taken[count])
        if gain > best:
            best, most = gain, count
    return most


def least_odds(taken: Sequence[float], requests: int, guessing: int) -> float:
    """Odds that first guesses must have for some number of them to be worth what they take, if it is shared among
    `guessing` of so many requests as well as can be."""
    least = 1.0
    for count in range(1, len(taken)):
        among = min(count, guessing)
        needed = requests * (log(taken[count]) + _GAIN) / among
        least = min(least, (exp(min(needed, _MOST)) - 1) * among / count)
    return max(LEAST_ODDS, least)

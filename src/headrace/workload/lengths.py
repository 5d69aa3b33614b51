"""How long texts are, how many turns a conversation has, how long somebody thinks: numbers drawn from a distribution by
a given generator. Lengths are whole and at least 1.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

from headrace.core.errors import ConfigError

Lengths = Callable[[Random], int]
Seconds = Callable[[Random], float]

LONGEST = 2**24


def fixed(length: int) -> Lengths:
    _in_order(1, length, LONGEST)
    return lambda draw: length


def uniform(least: int, most: int) -> Lengths:
    """Both included."""
    _in_order(1, least, most, LONGEST)
    return lambda draw: draw.randint(least, most)


def lognormal(median: float, mean: float, most: int = LONGEST) -> Lengths:
    """Texts that people and models write have about this shape. What would be longer than most is that long."""
    seconds = waits(median, mean)
    _in_order(1, median, mean, most, LONGEST)
    return lambda draw: min(most, max(1, round(seconds(draw))))


def geometric(mean: float, most: int = LONGEST) -> Lengths:
    """One, and as many more as each goes on with the same chance."""
    _in_order(1, mean, most, LONGEST)
    if mean == 1:
        return fixed(1)
    per_turn = math.log1p(-1 / mean)
    return lambda draw: min(most, 1 + int(math.log(1 - draw.random()) / per_turn))


def recorded(lengths: Sequence[int]) -> Lengths:
    """As a trace has them, each drawn as often as it occurs."""
    if not lengths:
        raise ConfigError("no lengths to draw from", field="lengths")
    kept = tuple(lengths)
    _in_order(1, min(kept), max(kept), LONGEST)
    return lambda draw: draw.choice(kept)


def waits(median: float, mean: float) -> Seconds:
    """Lognormal, of seconds: most are short, some very long."""
    _in_order(0, median, mean)
    if not median:
        return lambda draw: 0.0
    mu, sigma = math.log(median), math.sqrt(2 * math.log(mean / median))
    return lambda draw: draw.lognormvariate(mu, sigma)


def _in_order(*values: float) -> None:
    if any(not a <= b for a, b in pairwise(values)):
        raise ConfigError(f"these must not fall: {', '.join(f'{value:g}' for value in values)}", field="lengths")

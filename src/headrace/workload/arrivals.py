"""When requests come: endless times in order, drawn from a given generator, so that equal seeds give equal times. Rates
are means over a long time, in requests a second; `begin` may lie before 0, so that a load can be caught in full swing.
"""

import math
from collections.abc import Callable, Iterator
from random import Random

from headrace.core.errors import ConfigError

Arrivals = Callable[[Random, float], Iterator[float]]
"""Given a generator and the second at which to begin."""

DAY = 86_400.0


def poisson(rate: float) -> Arrivals:
    """Independent of each other."""
    return gamma(rate, 1.0)


def gamma(rate: float, burstiness: float) -> Arrivals:
    """Gaps from a gamma distribution of this shape: 1 is Poisson, below 1 in bursts, far above 1 regular; the gaps'
    coefficient of variation is burstiness^-0.5."""
    _above_zero(rate=rate, burstiness=burstiness)

    def times(draw: Random, begin: float) -> Iterator[float]:
        at = begin
        while True:
            at += draw.gammavariate(burstiness, 1 / (rate * burstiness))
            yield at

    return times


def on_off(rate: float, on_s: float, off_s: float) -> Arrivals:
    """Poisson while it is on, nobody while it is off; each lasts exponentially long, with these means."""
    _above_zero(rate=rate, on_s=on_s, off_s=off_s)
    within = rate * (on_s + off_s) / on_s

    def times(draw: Random, begin: float) -> Iterator[float]:
        at = begin + (draw.expovariate(1 / off_s) if draw.random() < off_s / (on_s + off_s) else 0.0)
        until = at + draw.expovariate(1 / on_s)
        while True:
            gap = draw.expovariate(within)
            while at + gap > until:
                gap -= until - at
                at = until + draw.expovariate(1 / off_s)
                until = at + draw.expovariate(1 / on_s)
            at += gap
            yield at

    return times


def varying(rate_at: Callable[[float], float], peak: float) -> Arrivals:
    """Poisson with a rate that changes: rate_at(second), never above peak (Lewis and Shedler's thinning)."""
    _above_zero(peak=peak)

    def times(draw: Random, begin: float) -> Iterator[float]:
        at = begin
        while True:
            at += draw.expovariate(peak)
            if draw.random() * peak < rate_at(at):
                yield at

    return times


def seasons(rate: float, *, day_swing: float = 0.6, weekend: float = 0.6, day_s: float = DAY) -> Arrivals:
    """A day's wave, lowest at its beginning and 1 + day_swing times the mean at its middle, and weekends (the sixth and
    seventh day) with that share of a weekday's rate. day_s: seconds of a day, less for a week in fast motion."""
    _above_zero(rate=rate, day_s=day_s, weekend=weekend)
    if not 0 <= day_swing <= 1 or weekend > 1:
        raise ConfigError(
            f"day_swing and weekend must be from 0 to 1, got {day_swing} and {weekend}", field="day_swing"
        )
    peak = rate * 7 / (5 + 2 * weekend) * (1 + day_swing)
    return varying(lambda at: peak * season(at / day_s, day_swing, weekend), peak)


def season(day: float, day_swing: float = 0.6, weekend: float = 0.6) -> float:
    """The rate of `seasons` so many days after the week's beginning, as a share of its peak."""
    return (weekend if day % 7 >= 5 else 1.0) * (1 - day_swing * math.cos(2 * math.pi * day)) / (1 + day_swing)


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} must be above 0 and finite, got {value}", field=name)

"""Arrivals: in order, at the rate that was asked, as bursty as asked, and the same for the same seed."""

from __future__ import annotations

import math
from itertools import islice, pairwise, takewhile
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.workload.arrivals import gamma, on_off, poisson, seasons, varying


def drawn(arrivals, count=4000, seed=0, begin=0.0):
    return list(islice(arrivals(Random(seed), begin), count))


def gaps(times):
    return [b - a for a, b in pairwise(times)]


processes = st.one_of(
    st.floats(0.01, 1000).map(poisson),
    st.builds(gamma, st.floats(0.01, 1000), st.floats(0.05, 20)),
    st.builds(on_off, st.floats(0.01, 100), st.floats(0.1, 100), st.floats(0.1, 100)),
    st.builds(seasons, st.floats(0.01, 10)),
)


@given(processes, st.integers(0, 2**32), st.floats(-1e4, 1e4))
def test_times_are_in_order_and_the_seeds(arrivals, seed, begin):
    times = drawn(arrivals, 50, seed, begin)
    assert begin <= times[0] and all(a <= b for a, b in pairwise(times))
    assert times == drawn(arrivals, 50, seed, begin) != drawn(arrivals, 50, seed + 1, begin)


@given(st.floats(0.01, 1000), st.integers(0, 100))
def test_poisson_has_the_rate(rate, seed):
    assert drawn(poisson(rate), seed=seed)[-1] == pytest.approx(4000 / rate, rel=0.1)


@pytest.mark.parametrize("burstiness", [0.1, 0.5, 4.0])
def test_gamma_is_as_bursty_as_asked(burstiness):
    found = gaps(drawn(gamma(10.0, burstiness), 20_000))
    assert fmean(found) == pytest.approx(0.1, rel=0.1)
    assert pstdev(found) / fmean(found) == pytest.approx(burstiness**-0.5, rel=0.1)


def test_on_and_off():
    times = drawn(on_off(5.0, on_s=10.0, off_s=30.0), 40_000)
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.1)
    # While it is on it is four times as fast, and while it is off nobody comes for long.
    ordered = sorted(gaps(times))
    assert ordered[len(ordered) // 2] == pytest.approx(math.log(2) / 20, rel=0.1) and ordered[-1] > 60


def test_seasons_have_days_and_weekends():
    times = list(
        takewhile(lambda at: at < 7 * 600.0, seasons(10.0, day_swing=0.5, weekend=0.5, day_s=600.0)(Random(1), 0))
    )
    assert len(times) / 4200 == pytest.approx(10, rel=0.05)
    by_day = [sum(day * 600 <= at < (day + 1) * 600 for at in times) for day in range(7)]
    assert fmean(by_day[5:]) / fmean(by_day[:5]) == pytest.approx(0.5, rel=0.1)
    noon = sum(250 <= at % 600 < 350 for at in times)
    night = sum(at % 600 < 50 or at % 600 >= 550 for at in times)
    assert noon / night == pytest.approx(3.0, rel=0.15)


def test_a_rate_that_varies_is_followed():
    times = list(takewhile(lambda at: at < 1000, varying(lambda at: 20 if at < 500 else 2, 20)(Random(0), 0.0)))
    assert sum(at < 500 for at in times) == pytest.approx(10_000, rel=0.05)
    assert sum(at >= 500 for at in times) == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: poisson(0.0), "rate must be above 0"),
        (lambda: poisson(math.inf), "rate must be above 0 and finite"),
        (lambda: poisson(math.nan), "rate"),
        (lambda: gamma(1.0, -1.0), "burstiness"),
        (lambda: on_off(1.0, 0.0, 1.0), "on_s"),
        (lambda: seasons(1.0, day_swing=1.5), "day_swing"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()

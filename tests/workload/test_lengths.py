"""Lengths: within their bounds, with the mean and median that were asked."""

from __future__ import annotations

from random import Random
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.workload.lengths import fixed, geometric, lognormal, recorded, uniform, waits


def drawn(lengths, count=20_000):
    draw = Random(0)
    return [lengths(draw) for _ in range(count)]


def test_means_and_medians():
    assert set(drawn(fixed(7), 10)) == {7}
    assert fmean(drawn(uniform(10, 20))) == pytest.approx(15, rel=0.02)
    found = drawn(lognormal(130, 210))
    assert median(found) == pytest.approx(130, rel=0.05) and fmean(found) == pytest.approx(210, rel=0.05)
    assert fmean(drawn(geometric(3.5))) == pytest.approx(3.5, rel=0.05) and set(drawn(geometric(1.0), 10)) == {1}
    found = drawn(waits(10, 30))
    assert median(found) == pytest.approx(10, rel=0.05) and fmean(found) == pytest.approx(30, rel=0.1)
    assert set(drawn(waits(0, 5), 10)) == {0.0}
    assert fmean(drawn(recorded([1, 1, 4]))) == pytest.approx(2, rel=0.05)


@given(st.integers(1, 10**6), st.floats(1, 3), st.integers(0, 2**32))
def test_bounds(least, factor, seed):
    draw = Random(seed)
    most = int(least * factor)
    assert least <= uniform(least, most)(draw) <= most
    assert 1 <= lognormal(least, least * factor, most=most + 1)(draw) <= most + 1 if least * factor <= most else True
    assert 1 <= geometric(factor, most=5)(draw) <= 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: fixed(0),
        lambda: uniform(5, 4),
        lambda: lognormal(10, 9),
        lambda: lognormal(10, 20, most=15),
        lambda: lognormal(float("nan"), 9),
        lambda: geometric(0.5),
        lambda: waits(-1, 1),
        lambda: recorded([]),
        lambda: recorded([4, 0]),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(ConfigError):
        make()

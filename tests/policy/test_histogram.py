"""Counts and sum, against sorting the values by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.histogram import Histogram


@given(st.lists(st.integers(-5, 30)))
def test_each_value_is_in_the_first_bucket_that_holds_it(values):
    histogram = Histogram((1, 5, 10))
    for value in values:
        histogram.observe(value)
    counts = histogram.read()
    assert counts.counts == (
        sum(v <= 1 for v in values),
        sum(1 < v <= 5 for v in values),
        sum(5 < v <= 10 for v in values),
        sum(v > 10 for v in values),
    )
    assert counts.total == sum(values)

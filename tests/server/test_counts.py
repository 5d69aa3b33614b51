"""Counts of several processes: each adds to its own row, any reads the sum, and a row outlives its writer."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.policy import histogram
from headrace.server.counts import Counts, Histogram

BOUNDS = (0.5, 1.0, 4.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 9)), max_size=40))
def test_the_sum_is_what_one_process_would_have_counted(seen: list[tuple[int, float]]) -> None:
    width = 1 + Histogram.width(BOUNDS)
    memory = [Counts(width, rows=3, row=row) for row in range(3)]
    expected = histogram.Histogram(BOUNDS)
    for row, value in seen:
        Histogram(memory[row], 1, BOUNDS).observe(value)
        expected.observe(value)
    read = [Histogram(counts, 1, BOUNDS).read() for counts in memory]
    assert tuple(map(sum, zip(*(each.counts for each in read), strict=True))) == expected.read().counts
    assert math.isclose(sum(each.total for each in read), expected.read().total)


def test_rows_in_a_file_are_read_by_all_and_outlive_their_writer(tmp_path: Path) -> None:
    file = tmp_path / "counts"
    one, other = (Counts(2, rows=2, row=row, file=file) for row in range(2))
    one.own[0] += 3.0
    other.own[0] += 4.0
    del other
    again = Counts(2, rows=2, row=1, file=file)
    again.own[0] += 1.0
    assert (one.total(0), again.total(0), one.total(1)) == (8.0, 8.0, 0.0)
    assert file.stat().st_mode & 0o777 == 0o600

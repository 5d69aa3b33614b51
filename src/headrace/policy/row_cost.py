"""What a step of few rows takes, by its number of rows, as measured. The latency model is a sum of so much for each
thing done; where a device reads all weights for one row as for eight, the cost of the second row is what drafting
turns on, and no such sum says it.
"""

from __future__ import annotations

from bisect import bisect_left

from headrace.policy.latency import LatencyModel, StepWork

MOST_ROWS = 128
_WEIGHT = 0.1
_LOOK_AGAIN = 64
"""Steps after which the latency model is asked again what a row takes."""


class RowCost:
    """Steps of up to MOST_ROWS rows; what was not measured lies on a line between its neighbours, or goes on from the
    nearest as the latency model says."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._measured: dict[int, float] = {}
        # The measured numbers of rows in order, and what they take: more rows never less.
        self._rows: list[int] = []
        self._seconds: list[float] = []
        self._row = 0.0
        self._age = 0

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of decodes, drafted or not, took so long."""
        rows = work.tokens
        if rows > MOST_ROWS or work.logit_rows < rows or seconds <= 0:
            return
        seen = self._measured.get(rows)
        # A stalled step says little about the next one.
        self._measured[rows] = seconds if seen is None else seen + _WEIGHT * (min(seconds, 2 * seen) - seen)
        self._rows = sorted(self._measured)
        self._seconds = []
        highest = 0.0
        for each in self._rows:
            highest = max(highest, self._measured[each])
            self._seconds.append(highest)
        self._age += 1

    def seconds(self, rows: int) -> float:
        known, taken = self._rows, self._seconds
        if not known:
            return self._latency.predict(StepWork(rows, rows, 0, 0.0, rows, rows))
        at = bisect_left(known, rows)
        if at == len(known):
            return taken[-1] + (rows - known[-1]) * self._row_seconds()
        high, after = known[at], taken[at]
        if at == 0:
            # No step is held to cost less than its share, whatever the model makes of few measurements.
            return max(after - (high - rows) * self._row_seconds(), after * rows / high)
        low, before = known[at - 1], taken[at - 1]
        return before + (after - before) * (rows - low) / (high - low)

    def _row_seconds(self) -> float:
        """What the latency model says that one more row takes."""
        if self._row == 0.0 or self._age >= _LOOK_AGAIN:
            self._age = 0
            predict = self._latency.predict
            self._row = predict(StepWork(2, 2, 0, 0.0, 2, 2)) - predict(StepWork(1, 1, 0, 0.0, 1, 1))
        return self._row

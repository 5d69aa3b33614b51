"""What a step of few rows takes, by its number of rows, as measured. The latency model is a sum of so much for each
thing done; where a device reads all weights for one row as for eight, the cost of the second row is what drafting
turns on, and no such sum says it.
"""

from __future__ import annotations

from itertools import pairwise

from headrace.policy.latency import LatencyModel, StepWork

MOST_ROWS = 128
_WEIGHT = 0.1


class RowCost:
    """Steps of up to MOST_ROWS rows; what was not measured lies on a line between its neighbours, or follows the
    latency model."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._measured: dict[int, float] = {}
        self._known: list[float] | None = None

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of decodes, drafted or not, took so long."""
        rows = work.tokens
        if rows > MOST_ROWS or work.logit_rows < rows or seconds <= 0:
            return
        seen = self._measured.get(rows)
        # A stalled step says little about the next one.
        self._measured[rows] = seconds if seen is None else seen + _WEIGHT * (min(seconds, 2 * seen) - seen)
        self._known = None

    def seconds(self, rows: int) -> float:
        if self._known is None:
            self._known = self._line()
        if rows <= MOST_ROWS:
            return self._known[rows]
        return self._known[MOST_ROWS] + self._slope(MOST_ROWS, rows)

    def _slope(self, rows: int, more: int) -> float:
        """What the latency model says of the difference."""
        predict = self._latency.predict
        return predict(StepWork(more, more, 0, 0.0, more, more)) - predict(StepWork(rows, rows, 0, 0.0, rows, rows))

    def _line(self) -> list[float]:
        known = sorted(self._measured.items())
        if not known:
            return [self._latency.predict(StepWork(r, r, 0, 0.0, r, r)) for r in range(MOST_ROWS + 1)]
        line = [0.0] * (MOST_ROWS + 1)
        first, last = known[0], known[-1]
        for rows in range(first[0] + 1):
            # No step is held to cost less than its share, whatever the model makes of few measurements.
            line[rows] = max(first[1] + self._slope(first[0], rows), first[1] * rows / first[0])
        for (low, before), (high, after) in pairwise(known):
            for rows in range(low + 1, high + 1):
                line[rows] = before + (after - before) * (rows - low) / (high - low)
        for rows in range(last[0] + 1, MOST_ROWS + 1):
            line[rows] = last[1] + self._slope(last[0], rows)
        for rows in range(1, MOST_ROWS + 1):
            line[rows] = max(line[rows], line[rows - 1])
        return line

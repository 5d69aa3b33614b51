"""What a step of few rows takes, by its number of rows and by whether some are guesses, as measured. The latency model
is a sum of so much for each thing done; where a device reads all weights for one row as for eight, the cost of the
second row is what guessing turns on, and no such sum says it. Nor does it know what guessing takes beside the device.

What counts is how figures compare, so a machine that is slow for a while must not make what was measured just then
look dear: each is noted in terms of how fast the machine is at the time. Other work makes a step longer and never
shorter, whatever its rows, so it is the lower quarter of what was measured that is compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from math import inf
from statistics import median

from headrace.policy.latency import LatencyModel, StepWork

MOST_ROWS = 128
_REMEMBERED = 11
_FRESH = 16
"""Measurements after which the curves are drawn anew."""
_WARM = 8
_LOOK_AGAIN = 16
"""Times that curves are drawn without a step of so many rows with guesses, after which its oldest is forgotten: what
seemed too dear when it was tried is not tried else."""
_PACE_WEIGHT = 0.1
_USUAL_WEIGHT = 0.02
_ENOUGH = 3
"""Measurements that say what is usual."""
_FASTEST, _SLOWEST = 0.5, 2.0
_SHORTEST = 1e-9
_HOPED = 0.3


class Curve:
    """Steps of one kind: the last measurements for each number of rows, and a line that does not fall through their
    lower quarters. least: how many make one that counts."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.measured: dict[int, deque[float]] = {}
        self.rows: list[int] = []
        self.seconds: list[float] = []

    def add(self, rows: int, seconds: float) -> None:
        """One more measurement, drawn later."""
        self.measured.setdefault(rows, deque(maxlen=_REMEMBERED)).append(seconds)

    def at(self, rows: int) -> float:
        """Between its neighbours, or as the nearest; 0 where nothing was drawn."""
        at = bisect_left(self.rows, rows)
        if not 0 < at < len(self.rows):
            return self.seconds[min(at, len(self.rows) - 1)] if self.rows else 0.0
        return _between(self.rows[at - 1], self.seconds[at - 1], self.rows[at], self.seconds[at], rows)

    def forget(self) -> None:
        """Drop the oldest measurement of each."""
        for rows in list(self.measured):
            self.forget_one(rows)

    def forget_one(self, rows: int) -> None:
        """Drop the oldest measurement of so many rows."""
        seen = self.measured[rows]
        seen.popleft()
        if not seen:
            del self.measured[rows]

    def draw(self) -> None:
        # Neighbours that fall are taken together (pool adjacent violators), weighed by how often they were measured.
        pools: list[tuple[float, int, list[int]]] = []
        for rows in sorted(self.measured):
            seen = self.measured[rows]
            if len(seen) < self.least:
                continue
            value, weight, members = low(seen), len(seen), [rows]
            while pools and pools[-1][0] > value:
                before, heavy, others = pools.pop()
                value = (before * heavy + value * weight) / (heavy + weight)
                weight, members = heavy + weight, others + members
            pools.append((value, weight, members))
        self.rows = [rows for _, _, members in pools for rows in members]
        self.seconds = [value for value, _, members in pools for _ in members]


class RowCost:
    """Steps of up to MOST_ROWS rows; what was not measured lies on a line between its neighbours, or goes on from the
    nearest as the latency model says."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._plain = Curve(1)
        # A stall at the first try would keep guesses from being tried again.
        self._drafted = Curve(3 if latency.learning else 1)
        # How slow the machine is at present: 1 as slow as when it was first measured.
        self._pace = 1.0
        # By rows and whether some are guesses, what such a step takes at pace 1. Pace and this share each surprise, in
        # one proportion: so what stalls add to a mean, but not to a median, cannot carry the pace away over time.
        self._usual: dict[tuple[int, bool], float] = {}
        self._row = 0.0
        self._fresh = 0
        # How often the curves were drawn: between two draws nothing changes.
        self.draws = 0
        # By rows with guesses: at which draw they were measured, or something of them forgotten.
        self._touched: dict[int, int] = {}
        self._relative: dict[int, list[float]] = {}

    def observe(self, work: StepWork, seconds: float, *, drafted: bool = False) -> None:
        """A step of decodes took so long, all that is done for it included. drafted: some of its rows were guesses."""
        rows = work.tokens
        if not 0 < rows <= MOST_ROWS or work.logit_rows < rows or seconds <= 0:
            return
        curve = self._drafted if drafted else self._plain
        if drafted:
            self._touched[rows] = self.draws
        if len(curve.measured.get(rows, ())) < curve.least:
            self._fresh = _FRESH
        else:
            self._adapt((rows, drafted), curve.measured[rows], seconds)
            self._fresh += 1
        curve.add(rows, seconds / self._pace)
        if self._fresh >= _FRESH:
            self._fresh = 0
            self.draws += 1
            for rows in [one for one, at in self._touched.items() if self.draws >= at + _LOOK_AGAIN]:
                self._touched[rows] = self.draws
                self._drafted.forget_one(rows)
                if rows not in self._drafted.measured:
                    del self._touched[rows]
            self._plain.draw()
            self._drafted.draw()
            self._relative.clear()
            if self.draws <= _WARM or self.draws % _LOOK_AGAIN == 0:
                self._row = 0.0

    def _adapt(self, kind: tuple[int, bool], seen: deque[float], seconds: float) -> None:
        usual = self._usual.get(kind)
        if usual is None:
            if len(seen) >= _ENOUGH:
                self._usual[kind] = median(seen)
            return
        off = min(max(seconds / (self._pace * usual), _FASTEST), _SLOWEST)
        self._pace *= off**_PACE_WEIGHT
        self._usual[kind] = usual * off**_USUAL_WEIGHT

    def measured(self) -> list[tuple[int, bool, float, int]]:
        """(rows, whether some were guesses, seconds at the present pace, of how many measurements)."""
        return [
            (rows, guesses, self._pace * low(seen), len(seen))
            for guesses, curve in ((False, self._plain), (True, self._drafted))
            for rows, seen in sorted(curve.measured.items())
        ]

    def knows(self, rows: int) -> bool:
        """Whether it was measured what so many decodes take without guesses, or need not be."""
        return rows > MOST_ROWS or rows in self._plain.measured or not self._latency.learning

    def relative(self, rows: int, most: int) -> list[float]:
        """What a step of `rows` takes with 0, 1, ... guesses beside it, up to at least `most`, in terms of what it
        takes with none."""
        known = self._relative.setdefault(rows, [1.0])
        if len(known) <= most:
            plain = self.seconds(rows)
            more = range(len(known), most + 1)
            known += [self.seconds(rows + guesses, drafted=True) / plain for guesses in more]
        return known

    def seconds(self, rows: int, *, drafted: bool = False) -> float:
        """What such a step takes at present."""
        if drafted and self._drafted.rows:
            return self._pace * self._with_guesses(rows)
        if self._plain.rows:
            return self._pace * self._without(rows)
        return self._predicted(rows)

    def _without(self, rows: int) -> float:
        known, taken = self._plain.rows, self._plain.seconds
        at = bisect_left(known, rows)
        if at == len(known):
            return taken[-1] + self._more(known[-1], rows)
        if at:
            return self._plain.at(rows)
        # No step is held to cost less than its share, whatever the model makes of few measurements.
        high, after = known[0], taken[0]
        return max(after - (high - rows) * self._row_seconds(), after * rows / high)

    def _with_guesses(self, rows: int) -> float:
        known, taken = self._drafted.rows, self._drafted.seconds
        at = bisect_left(known, rows)
        if at == len(known):
            more = self._more(known[-1], rows)
            if not self._latency.learning:
                return taken[-1] + more
            return taken[-1] + min(more, (rows - known[-1]) * self._slope(known[-1], taken[-1]))
        if known[at] == rows:
            return taken[at]
        if at:
            return _hoped(known[at - 1], taken[at - 1], known[at], taken[at], rows)
        # From what fewer rows take without guesses: hopeful, and put right as soon as it is tried.
        base = bisect_left(self._plain.rows, rows) - 1
        if base < 0:
            return taken[0] * min(1.0, self._predicted(rows) / self._predicted(known[0]))
        return _hoped(self._plain.rows[base], self._plain.seconds[base], known[0], taken[0], rows)

    def _slope(self, rows: int, seconds: float) -> float:
        """What each row up to this many has taken more than the fewest."""
        known, taken = self._plain.rows, self._plain.seconds
        return max(0.0, seconds - taken[0]) / (rows - known[0]) if known and known[0] < rows else inf

    def _more(self, rows: int, many: int) -> float:
        """What the latency model says that so many rows take more, at the pace of the first steps."""
        if self._latency.learning:
            return (many - rows) * self._row_seconds()
        return (self._predicted(many) - self._predicted(rows)) / self._pace

    def _predicted(self, rows: int) -> float:
        return self._latency.predict(StepWork(rows, rows, 0, 0.0, rows, rows))

    def _row_seconds(self) -> float:
        """What the latency model says that one more row takes, at the pace of the first steps."""
        if self._row == 0.0:
            self._row = max(self._predicted(2) - self._predicted(1), _SHORTEST) / self._pace
        return self._row


def low(seen: Iterable[float]) -> float:
    """Their lower quarter; of up to four, the least."""
    ordered = sorted(seen)
    return ordered[(len(ordered) - 1) // 4]


def _between(few: int, before: float, many: int, after: float, rows: int) -> float:
    return before + (after - before) * (rows - few) / (many - few)


def _hoped(few: int, before: float, many: int, after: float, rows: int) -> float:
    """Less than the line says: a step that turns out dearer puts it right, one that is never tried does not."""
    return before + _HOPED * (after - before) * (rows - few) / (many - few)

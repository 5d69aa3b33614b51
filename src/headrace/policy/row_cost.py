"""What a step of few rows takes, by its number of rows and by whether some are guesses, as measured. The latency model
is a sum of so much for each thing done; where a device reads all weights for one row as for eight, the cost of the
second row is what guessing turns on, and no such sum says it. Nor does it know what guessing takes beside the device.

What counts is how figures compare, and a machine that is slow for a while is so for all. So each step is compared with
the one just before it, if that was of another kind: a slow spell falls on both, and a stall counts no more than the
farthest that one may be off. Steps with guesses only would compare with nothing, so that now and then one without is
called for: at once after a kind that is little known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import inf

from headrace.policy.latency import LatencyModel, StepWork

MOST_ROWS = 512
_EXACT = 16
"""Steps with guesses of up to so many rows are told apart; larger ones are taken together with those of nearly as
many, as there are too many of them to be tried one by one."""
_FRESH = 16
"""Measurements after which the curves are drawn anew."""
_WARM = 8
_REDRAWS = 16
_LOOK_AGAIN = 256
"""Steps after which one kind of steps with guesses is forgotten, if it was not seen for as long: what seemed too dear
when it was tried is not tried else."""
_KNOWN = 32
"""Comparisons from which on one more counts no more than this share; and steps with guesses in a row, at most."""
_UNKNOWN = 9.0
"""How little a kind that was never compared is known, where 1 is what one comparison leaves."""
_FARTHEST = 1.6
_PACE_WEIGHT = 0.1
_SHORTEST = 1e-9
_HOPED = 0.3


@dataclass(slots=True, eq=False)
class _Kind:
    """Steps of so many rows, in the mean: what they take at pace 1, comparisons, and when the last one was seen."""

    rows: float
    seconds: float
    compared: int = 0
    seen: int = 0

    @property
    def doubt(self) -> float:
        return 1 / min(self.compared, _KNOWN) if self.compared else _UNKNOWN


class _Line:
    """Through what kinds of steps take."""

    def __init__(self) -> None:
        self.rows: list[float] = []
        self.seconds: list[float] = []

    def draw(self, kinds: dict[int, _Kind], *, rising: bool) -> None:
        """rising: neighbours that fall are taken together (pool adjacent violators), weighed by how well they are
        known. Else what was compared only with others is left as it is."""
        pools: list[tuple[float, float, list[float]]] = []
        for _, kind in sorted(kinds.items()):
            value, weight, members = kind.seconds, 1 / kind.doubt, [kind.rows]
            while rising and pools and pools[-1][0] > value:
                before, heavy, others = pools.pop()
                value = (before * heavy + value * weight) / (heavy + weight)
                weight, members = heavy + weight, others + members
            pools.append((value, weight, members))
        self.rows = [rows for _, _, members in pools for rows in members]
        self.seconds = [value for value, _, members in pools for _ in members]

    def at(self, rows: float) -> float:
        """Between its neighbours, or as the nearest."""
        at = bisect_left(self.rows, rows)
        if not 0 < at < len(self.rows):
            return self.seconds[min(at, len(self.rows) - 1)]
        return _between(self.rows[at - 1], self.seconds[at - 1], self.rows[at], self.seconds[at], rows)


class RowCost:
    """Steps of up to MOST_ROWS rows; what was not measured lies on a line between its neighbours, or goes on from the
    nearest as the latency model says."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        # By rows; with guesses, by the most rows that are taken together.
        self._kinds: dict[bool, dict[int, _Kind]] = {False: {}, True: {}}
        self._plain, self._drafted = _Line(), _Line()
        # How slow the machine is at present: 1 as slow as when it was first measured.
        self._pace = 1.0
        self._row = 0.0
        self._steps = 0
        self._fresh = 0
        # The step before this one: its kind, and what pace it speaks for.
        self._before: tuple[_Kind, float] | None = None
        # How often the curves were drawn: between two draws nothing changes.
        self.draws = 0
        self._look_again = _LOOK_AGAIN
        # Steps for which one with guesses like the last may go without another to be compared with.
        self._alone = 1
        self._relative: dict[int, list[float]] = {}

    def observe(self, work: StepWork, seconds: float, *, drafted: bool = False) -> None:
        """A step of decodes took so long, all that is done for it included. drafted: some of its rows were guesses."""
        rows = work.tokens
        if not 0 < rows <= MOST_ROWS or work.logit_rows < rows or seconds <= 0:
            self._before = None
            return
        self._steps += 1
        self._fresh += 1
        kind = self._kind(rows, seconds, drafted=drafted)
        kind.seen = self._steps
        expected = kind.seconds
        if drafted:
            self._alone = max(1, min(kind.compared, _KNOWN) // 2)
            if kind.rows != rows and self._drafted.rows:
                expected *= self._drafted.at(rows) / self._drafted.at(kind.rows)
                kind.rows += (rows - kind.rows) * _PACE_WEIGHT
        pace = seconds / expected
        before, self._before = self._before, (kind, pace)
        if before is not None and before[0] is not kind:
            off = _near(pace / before[1])
            if off != pace / before[1]:
                # A stall is not to count once more when the next step is compared with it.
                self._before = None
            self._compare(kind, before[0], off)
        self._pace *= _near(pace / self._pace) ** _PACE_WEIGHT
        if self._fresh >= _FRESH:
            self._draw()

    def _kind(self, rows: int, seconds: float, *, drafted: bool) -> _Kind:
        kinds, key = self._kinds[drafted], _together(rows) if drafted else rows
        kind = kinds.get(key)
        if kind is None:
            if drafted and self._kinds[False]:
                # How it compares is told by comparison; until then it is what was hoped.
                seconds = self.seconds(rows, drafted=True)
            kind = kinds[key] = _Kind(rows, seconds / self._pace)
            self._fresh = _FRESH
        return kind

    def _compare(self, kind: _Kind, other: _Kind, off: float) -> None:
        """Each takes the share of what they are off that its doubt has in all there is; that of one comparison is 1."""
        doubts = kind.doubt + other.doubt + 1
        kind.seconds *= off ** (kind.doubt / doubts)
        other.seconds /= off ** (other.doubt / doubts)
        for one in (kind, other):
            one.compared += 1
            if one.compared <= 4:
                self._fresh = _FRESH

    def _draw(self) -> None:
        self._fresh = 0
        self.draws += 1
        drafted = self._kinds[True]
        if self._steps >= self._look_again and drafted:
            self._look_again = self._steps + _LOOK_AGAIN
            oldest = min(drafted, key=lambda key: drafted[key].seen)
            if drafted[oldest].seen <= self._steps - _LOOK_AGAIN:
                del drafted[oldest]
        self._plain.draw(self._kinds[False], rising=False)
        self._drafted.draw(drafted, rising=True)
        self._relative.clear()
        if self.draws <= _WARM or self.draws % _REDRAWS == 0:
            self._row = 0.0

    def measured(self) -> list[tuple[int, bool, float, int]]:
        """(rows, whether some were guesses, seconds at the present pace, of how many comparisons)."""
        return [
            (round(kind.rows), guesses, self._pace * kind.seconds, kind.compared)
            for guesses, kinds in self._kinds.items()
            for _, kind in sorted(kinds.items())
        ]

    def knows(self, rows: int) -> bool:
        """Whether guesses beside so many decodes can be compared with none, or need not be: a step without is known,
        and not long ago."""
        if rows > MOST_ROWS or not self._latency.learning:
            return True
        kind = self._kinds[False].get(rows)
        return kind is not None and self._steps - kind.seen < max(1, min(self._alone, kind.compared // 2))

    def reach(self, rows: int) -> int:
        """How many guesses beside so many decodes may be tried: such that the step has at most twice the rows of any
        that is known, as what lies far beyond is often taken to be much cheaper than it is."""
        if rows >= MOST_ROWS or not self._latency.learning:
            return MOST_ROWS
        return min(2 * max(rows, *self._kinds[True], 0), MOST_ROWS) - rows

    def relative(self, rows: int, most: int) -> list[float]:
        """What a step of `rows` takes with 0, 1, ... guesses beside it, up to at least `most`, in terms of what it
        takes with none."""
        known = self._relative.setdefault(rows, [1.0])
        if len(known) <= most:
            plain = self.seconds(rows)
            more = range(len(known), most + 1)
            known += [max(1.0, self.seconds(rows + guesses, drafted=True) / plain) for guesses in more]
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
        if at < len(known) and known[at] == rows:
            return taken[at]
        # From the nearest fewer rows, with guesses or without: hopeful, and put right as soon as it is tried.
        base = bisect_right(self._plain.rows, rows) - 1
        below = [(known[at - 1], taken[at - 1])] if at else []
        if base >= 0:
            below.append((self._plain.rows[base], self._plain.seconds[base]))
        if not below:
            return taken[0] * min(1.0, self._predicted(rows) / self._predicted(round(known[0])))
        few, before = max(below)
        if at < len(known):
            return _hoped(few, before, known[at], taken[at], rows)
        more = self._more(few, rows)
        return before + (min(more, (rows - few) * self._slope(few, before)) if self._latency.learning else more)

    def _slope(self, rows: float, seconds: float) -> float:
        """What each row up to this many has taken more than the fewest."""
        known, taken = self._plain.rows, self._plain.seconds
        return max(0.0, seconds - taken[0]) / (rows - known[0]) if known and known[0] < rows else inf

    def _more(self, rows: float, many: int) -> float:
        """What the latency model says that so many rows take more, at the pace of the first steps."""
        if self._latency.learning:
            return (many - rows) * self._row_seconds()
        return (self._predicted(many) - self._predicted(round(rows))) / self._pace

    def _predicted(self, rows: int) -> float:
        return self._latency.predict(StepWork(rows, rows, 0, 0.0, rows, rows))

    def _row_seconds(self) -> float:
        """What the latency model says that one more row takes, at the pace of the first steps."""
        if self._row == 0.0:
            self._row = max(self._predicted(2) - self._predicted(1), _SHORTEST) / self._pace
        return self._row


def _together(rows: int) -> int:
    """The most rows that are taken together with so many: a quarter of a power of two more than the fewest, at most."""
    step = 1 if rows <= _EXACT else 1 << (rows - 1).bit_length() - 3
    return -(-rows // step) * step


def _near(off: float) -> float:
    return min(max(off, 1 / _FARTHEST), _FARTHEST)


def _between(few: float, before: float, many: float, after: float, rows: float) -> float:
    return before + (after - before) * (rows - few) / (many - few)


def _hoped(few: float, before: float, many: float, after: float, rows: float) -> float:
    """Less than the line says: a step that turns out dearer puts it right, one that is never tried does not."""
    share = _HOPED if many <= _EXACT else 1.0
    return before + share * (after - before) * (rows - few) / (many - few)

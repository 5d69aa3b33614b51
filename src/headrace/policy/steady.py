"""Steady: everything about a step that stays the same while the same requests decode, gathered once. A step then
costs what changes: ends that rise by one, and blocks for those slots whose turn it is to cross into the next.

It holds until a request joins or leaves, or the first one reaches its last position.
"""

from operator import sub

import msgspec
import numpy as np

from headrace.core.batch import EMPTY, BoolArray, IntArray
from headrace.policy.latency import StepWork
from headrace.policy.slots import Slots

_AHEAD = 16
"""Single steps whose ends are made together: to look numbers up takes less than to add them."""
_STEPS: IntArray = np.arange(_AHEAD + 2, dtype=np.int32)[:, None]


class Repeats(msgspec.Struct, frozen=True, gc=False):
    """So many steps of decodes that are alike. work: what the first of them computes."""

    steps: int
    work: StepWork


class Steady:
    """Built when every slot of `slots` has computed its first `ends` positions and knows one token more. after: how
    many are known once steps were begun. Arrays are shared by all its batches; nothing may write to them."""

    def __init__(self, state: Slots, slots: IntArray, ends: IntArray, block_size: int) -> None:
        count = len(slots)
        self.slots = slots
        self.at = slots.astype(np.intp)
        self._places: list[int] | None = None
        self._ends: IntArray | None = ends
        self._ahead = self.after = ends
        self._at = _AHEAD
        self.ones: IntArray = np.ones(count, np.int32)
        self.entries: IntArray = np.arange(count, dtype=np.int32)
        # The same as numbers: slots, ones and entries.
        self.whose, self.once, self.order = slots.tolist(), [1] * count, list(range(count))
        self.sample: BoolArray = np.ones(count, np.bool_)
        self.top = state.top.take(slots)
        self.serials = state.serial.take(slots)
        self.request_ids: list[str] = state.request_ids[slots].tolist()
        # Whatever token ends one of its requests.
        self.ending: frozenset[int] = frozenset()
        if state.stopping:
            self.ending = frozenset(state.stops[slots].ravel().tolist()) - {-1}
        self.plain = not state.many_stops and (not state.reporting or int(self.top.max()) < 0)
        # Steps that may be begun before some slot has no position left.
        self.last: list[int] = state.last.take(slots).tolist()
        self.left = min(map(sub, self.last, ends.tolist()))
        # Positions computed of all of them together.
        self.context = sum(ends.tolist())
        # Steps that may be begun before some slot needs a block, at least: for who does not ask crossing().
        self.room = 0
        self._age = self._due = 0
        self._turns: list[int]
        self._starts: list[int]
        self._block_size = block_size
        # A slot crosses into a new block each block_size steps; crossing[r]: those that do in steps r, r + size, ...
        turn = (-ends) % block_size
        self._next = 0
        if count == 1:
            self._turns, self._starts, self._by_turn = turn.tolist(), [0, 1], slots
            self._index = (ends + turn) // block_size
            self._due = self._turns[0]
            return
        by_turn = turn.argsort(kind="stable")
        ordered = turn.take(by_turn)
        # Turns in which somebody crosses, rising, and where each begins in the arrays by turn.
        first = [0, *((ordered[1:] != ordered[:-1]).nonzero()[0] + 1).tolist()]
        self._turns = ordered.take(first).tolist()
        self._starts = [*first, count]
        self._by_turn = slots.take(by_turn)
        self._index = (ends.take(by_turn) + ordered) // block_size
        self._due = self._turns[0]

    def stand_at(self, ends: list[int]) -> None:
        """Go on from these ends, which did not rise alike: guesses came true. From here on blocks are given by need;
        crossing() means nothing any more."""
        self.room -= max(map(sub, ends, self.places))
        self.left = min(map(sub, self.last, ends))
        self.context = sum(ends)
        self._places, self._ends = ends, None

    @property
    def ends(self) -> IntArray:
        if self._ends is None:
            self._ends, self._at = np.array(self._places, np.int32), _AHEAD
        return self._ends

    @property
    def places(self) -> list[int]:
        """The ends as numbers."""
        if self._places is None:
            self._places = self.ends.tolist()
        return self._places

    @property
    def work(self) -> StepWork:
        """What the next step computes."""
        count = len(self.slots)
        return StepWork(count, count, self.context + count, 0.0, count, count)

    def crossing(self) -> tuple[IntArray, IntArray]:
        """Slots that need a block in the next step, and its index in their tables."""
        if self._age < self._due:
            return EMPTY, EMPTY
        lap, place = divmod(self._next, len(self._turns))
        here = slice(self._starts[place], self._starts[place + 1])
        return self._by_turn[here], self._index[here] + lap

    @property
    def until_crossing(self) -> int:
        """Steps from the next one on until one comes, after the next, in which a slot needs a block."""
        for ahead in (self._next, self._next + 1):
            lap, place = divmod(ahead, len(self._turns))
            steps = lap * self._block_size + self._turns[place] - self._age
            if steps > 0:
                return steps
        return 1

    def advance(self, steps: int = 1) -> None:
        """So many steps are begun, of which none but the first needs a block."""
        if self._age == self._due:
            self._next += 1
            lap, place = divmod(self._next, len(self._turns))
            self._due = lap * self._block_size + self._turns[place]
        ends = self.ends
        if steps > 1:
            self._ends, self._at = ends + np.int32(steps), _AHEAD
            self.after = self._ends + self.ones
        else:
            if self._at >= _AHEAD:
                self._ahead, self._at = ends + _STEPS, 0
            self._at += 1
            self._ends, self.after = self._ahead[self._at], self._ahead[self._at + 1]
        self._places = None
        self.context += steps * len(self.slots)
        self._age += steps
        self.left -= steps
        self.room -= steps

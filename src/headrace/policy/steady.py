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


class Repeats(msgspec.Struct, frozen=True, gc=False):
    """So many steps of decodes that are alike. work: what the first of them computes."""

    steps: int
    work: StepWork


class Steady:
    """Built when every slot of `slots` has computed its first `ends` positions and knows one token more. Arrays are
    shared by all its batches; nothing may write to them."""

    def __init__(self, state: Slots, slots: IntArray, ends: IntArray, block_size: int) -> None:
        count = len(slots)
        self.slots = slots
        self.at = slots.astype(np.intp)
        self.ends = ends
        self.ones: IntArray = np.ones(count, np.int32)
        self.entries: IntArray = np.arange(count, dtype=np.int32)
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
        self._age = 0
        self._turns: list[int]
        self._starts: list[int]
        self._block_size = block_size
        # A slot crosses into a new block each block_size steps; crossing[r]: those that do in steps r, r + size, ...
        turn = (-ends) % block_size
        self._next = 0
        if count == 1:
            self._turns, self._starts, self._by_turn = turn.tolist(), [0, 1], slots
            self._index = (ends + turn) // block_size
            return
        by_turn = turn.argsort(kind="stable")
        ordered = turn.take(by_turn)
        # Turns in which somebody crosses, rising, and where each begins in the arrays by turn.
        first = [0, *((ordered[1:] != ordered[:-1]).nonzero()[0] + 1).tolist()]
        self._turns = ordered.take(first).tolist()
        self._starts = [*first, count]
        self._by_turn = slots.take(by_turn)
        self._index = (ends.take(by_turn) + ordered) // block_size

    def stand_at(self, ends: IntArray) -> None:
        """Go on from these ends, which did not rise alike: guesses came true. From here on blocks are given by need;
        crossing() means nothing any more."""
        before, after = self.ends.tolist(), ends.tolist()
        self.ends = ends
        self.left = min(map(sub, self.last, after))
        self.room -= max(map(sub, after, before))
        self.context = sum(after)

    @property
    def work(self) -> StepWork:
        """What the next step computes."""
        count = len(self.slots)
        return StepWork(count, count, self.context + count, 0.0, count, count)

    def crossing(self) -> tuple[IntArray, IntArray]:
        """Slots that need a block in the next step, and its index in their tables."""
        lap, place = divmod(self._next, len(self._turns))
        if self._age < lap * self._block_size + self._turns[place]:
            return EMPTY, EMPTY
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
        lap, place = divmod(self._next, len(self._turns))
        if self._age == lap * self._block_size + self._turns[place]:
            self._next += 1
        self.ends = self.ends + np.int32(steps)
        self.context += steps * len(self.slots)
        self._age += steps
        self.left -= steps
        self.room -= steps

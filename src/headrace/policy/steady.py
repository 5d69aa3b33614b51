"""Steady: everything about a step that stays the same while the same requests decode, gathered once. A step then
costs what changes: ends that rise by one, and blocks for those slots whose turn it is to cross into the next.

It holds until a request joins or leaves, or the first one reaches its last position.
"""

from __future__ import annotations

import numpy as np

from headrace.core.batch import BoolArray, IntArray
from headrace.policy.slots import Slots


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
        self.top = state.top[slots]
        self.serials = state.serial[slots]
        self.request_ids: list[str] = state.request_ids[slots].tolist()
        stops = state.stops[slots]
        self.stops = [column for column in np.ascontiguousarray(stops.T) if (column >= 0).any()]
        self.plain = not state.many_stops and int(self.top.max()) < 0
        # Steps that may be begun before some slot has no position left.
        self.left = int((state.last[slots] - ends).min())
        self._age = 0
        self._block_size = block_size
        # A slot crosses into a new block each block_size steps; crossing[r]: those that do in steps r, r + size, ...
        turn = (-ends) % block_size
        by_turn = np.argsort(turn, kind="stable")
        starts = np.searchsorted(turn[by_turn], np.arange(1, block_size))
        self._crossing = [(slots[i], (ends[i] + turn[i]) // block_size) for i in np.split(by_turn, starts)]

    def crossing(self) -> tuple[IntArray, IntArray]:
        """Slots that need a block in the next step, and its index in their tables."""
        lap, turn = divmod(self._age, self._block_size)
        slots, index = self._crossing[turn]
        return slots, index + lap

    def advance(self) -> None:
        """The next step is begun."""
        self.ends = self.ends + self.ones
        self._age += 1
        self.left -= 1

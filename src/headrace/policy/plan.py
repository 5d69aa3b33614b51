"""Plan: who computes which positions in a step that is being put together."""

from __future__ import annotations

import msgspec
import numpy as np

from headrace.core.batch import IntArray


class Plan(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Entry i: slot slots[i] computes counts[i] positions from starts[i] on; all int32 [n]. held_back: slots that want
    several tokens and get theirs after waiting requests of better classes have had their chance."""

    slots: IntArray
    starts: IntArray
    counts: IntArray
    held_back: IntArray

    def moving(self) -> Plan:
        """Without entries that got no token."""
        if np.count_nonzero(self.counts) == len(self.counts):
            return self
        moving = self.counts > 0
        return Plan(self.slots[moving], self.starts[moving], self.counts[moving], self.held_back)

    def adding(self, entries: list[tuple[int, int, int]]) -> Plan:
        """With more entries: (slot, start, count)."""
        if not entries:
            return self
        slots, starts, counts = np.array(entries, np.int32).T.copy()
        if not len(self.slots):
            return Plan(slots, starts, counts, self.held_back)
        return Plan(
            np.concatenate([self.slots, slots]),
            np.concatenate([self.starts, starts]),
            np.concatenate([self.counts, counts]),
            self.held_back,
        )

    def without(self, gone: list[int]) -> Plan:
        """Without these slots."""
        if not gone:
            return self
        kept = ~np.isin(self.slots, gone)
        held_back = self.held_back[~np.isin(self.held_back, gone)]
        return Plan(self.slots[kept], self.starts[kept], self.counts[kept], held_back)

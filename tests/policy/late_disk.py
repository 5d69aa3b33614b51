"""LateDisk: a disk whose transfers end in any order, as late as its seed likes, and whose blocks are damaged at times.
It reads and writes the host's memory when a transfer ends, so a host block reused too early is seen. What it holds
outlives the engine.
"""

from __future__ import annotations

import random

from headrace.core.disk import DiskDelete, DiskResult, DiskWrite, StoredBlock


class LateDisk:
    """held: cells by name and group. broken: share of reads that find their block damaged."""

    def __init__(self, seed: int, broken: float = 0.05) -> None:
        self.held: dict = {}
        self.seen: list[str] = []
        self._draw = random.Random(seed)
        self._broken = broken
        self._under_way: list = []

    def reopen(self) -> None:
        """Whoever used it is gone, with all that was under way."""
        self._under_way.clear()

    def begin(self, transfers, host) -> None:
        for one in transfers:
            if isinstance(one, DiskDelete):
                self.held.pop((one.name, one.group), None)
                self.seen.append("disk: block let go")
            else:
                self._under_way.append((one, host[one.group]))

    def stored(self) -> list[StoredBlock]:
        return [StoredBlock(name, group, cells.nbytes) for (name, group), cells in self.held.items()]

    def results(self, wait_s: float) -> list[DiskResult]:
        ended = []
        waiting, self._under_way = self._under_way, []
        self._draw.shuffle(waiting)
        for one, host in waiting:
            if self._draw.random() < 0.4 or (wait_s > 0 and not ended):
                ended.append(DiskResult(one.number, self._carry_out(one, host)))
            else:
                self._under_way.append((one, host))
        return ended

    def _carry_out(self, one, host) -> bool:
        key = (one.name, one.group)
        if isinstance(one, DiskWrite):
            self.held[key] = host[one.block].copy()
            self.seen.append("disk: block written")
            return True
        if key in self.held and self._draw.random() < self._broken:
            del self.held[key]
            self.seen.append("disk: block damaged")
        if key not in self.held:
            return False
        host[one.block] = self.held[key]
        self.seen.append("disk: block read")
        return True

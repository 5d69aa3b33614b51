"""NullDisk: the disk below a NullExecutor. What it holds outlives the executor, so that a restart can be played. It is
slow on purpose: a transfer ends when results were asked for `delay` times after it began, and reads what the host's
memory holds by then, so a block that is reused too early is seen.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

from headrace.core.disk import DiskDelete, DiskRead, DiskResult, DiskTransfer, DiskWrite, StoredBlock

Cells = npt.NDArray[np.uint64]


class NullDisk:
    """held: blocks by name and group, in order of use. damaged: names that cannot be read back."""

    def __init__(self, delay: int = 0) -> None:
        self.held: dict[tuple[bytes, int], Cells] = {}
        self.damaged: set[bytes] = set()
        self._delay = delay
        self._asked = 0
        self._under_way: deque[tuple[int, DiskWrite | DiskRead, Cells]] = deque()

    def begin(self, transfers: tuple[DiskTransfer, ...], host: list[Cells]) -> None:
        """host: the host's blocks of each group."""
        for one in transfers:
            if isinstance(one, DiskDelete):
                self.held.pop((one.name, one.group), None)
            else:
                self._under_way.append((self._asked + self._delay, one, host[one.group]))

    def stored(self) -> list[StoredBlock]:
        return [StoredBlock(name, group, cells.nbytes) for (name, group), cells in self.held.items()]

    def results(self, wait_s: float) -> list[DiskResult]:
        self._asked += 1
        ended: list[DiskResult] = []
        while self._under_way and (self._under_way[0][0] < self._asked or (wait_s > 0 and not ended)):
            _, one, host = self._under_way.popleft()
            ended.append(DiskResult(one.number, self._carry_out(one, host)))
        return ended

    def _carry_out(self, one: DiskWrite | DiskRead, host: Cells) -> bool:
        key = (one.name, one.group)
        if isinstance(one, DiskWrite):
            self.held[key] = host[one.block].copy()
            return True
        if one.name in self.damaged:
            self.held.pop(key, None)
        if key not in self.held:
            return False
        cells = self.held[key] = self.held.pop(key)
        host[one.block] = cells
        return True

"""What the API's processes count, as rows of numbers in one piece of memory: each process writes to a row of its own,
and any of them can read the sum. Shared through a file, rows outlive the process that wrote them.
"""

import mmap
import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from headrace.policy.histogram import HistogramCounts

_NUMBER_BYTES = 8


class Counts:
    """rows of `width` numbers, of which the one at index row is this process's. Written without a lock: only one
    thread of one process writes to a row, and a reader may see a number that is a moment old."""

    def __init__(self, width: int, *, rows: int = 1, row: int = 0, file: Path | None = None) -> None:
        size = rows * width * _NUMBER_BYTES
        memory: bytearray | mmap.mmap = bytearray(size)
        if file is not None:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
            os.close(descriptor)
        self._all = memoryview(memory).cast("d")
        self._width = width
        self.own = self._all[row * width : (row + 1) * width]

    def total(self, index: int) -> float:
        """The sum over all rows."""
        return sum(self._all[index :: self._width])


class Histogram:
    """How often values fell into which bucket, kept in counts from `start` on. bounds in rising order."""

    def __init__(self, counts: Counts, start: int, bounds: Sequence[float]) -> None:
        self._counts = counts
        self._own = counts.own
        self._start = start
        self._bounds = tuple(bounds)
        self._sum = start + len(bounds) + 1

    @staticmethod
    def width(bounds: Sequence[float]) -> int:
        """Numbers that it takes: one more bucket than bounds, and the sum."""
        return len(bounds) + 2

    def observe(self, value: float) -> None:
        own = self._own
        own[self._start + bisect_left(self._bounds, value)] += 1.0
        own[self._sum] += value

    def read(self) -> HistogramCounts:
        """Of all processes."""
        counts = tuple(int(self._counts.total(i)) for i in range(self._start, self._sum))
        return HistogramCounts(self._bounds, counts, self._counts.total(self._sum))

"""In what order unreferenced blocks of one pool give way: those whose time to live is over, then ordinary ones, then
pinned ones; among equals the one least recently used. Time is a tick that rises with each use, so the order never
depends on a clock.

Blocks come in runs, and a run is one entry of a queue; an entry is only believed for blocks whose tick it still has.
So every operation costs a few vector operations, and none grows with the pool.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

from headrace.core.batch import EMPTY, IntArray

EXPIRED, ORDINARY, PINNED = 0, 1, 2
"""Ranks, the first to give way first."""

_SLACK = 1024


class EvictionOrder:
    """Owns which blocks are evictable. Arrays of blocks given to put() must not be written to afterwards."""

    def __init__(self, num_blocks: int) -> None:
        self._ticks: npt.NDArray[np.int64] = np.zeros(num_blocks, np.int64)  # 0: not here
        self._queues: tuple[deque[tuple[int, IntArray]], ...] = (deque(), deque(), deque())
        self._tick = 0
        self._here = 0
        self._queued = 0

    def __len__(self) -> int:
        return self._here

    def __contains__(self, block: int) -> bool:
        return bool(self._ticks[block])

    def blocks(self) -> IntArray:
        """All that are here, by number."""
        return np.flatnonzero(self._ticks).astype(np.int32)

    def put(self, blocks: IntArray, rank: int = ORDINARY) -> int:
        """These (all different) were used just now, the first of them least recently. Returns their tick."""
        self._tick += 1
        self._here += len(blocks) - int(np.count_nonzero(self._ticks.take(blocks)))
        self._ticks[blocks] = self._tick
        self._queues[rank].append((self._tick, blocks))
        self._queued += len(blocks)
        if self._queued > 2 * self._here + _SLACK:
            self._compact()
        return self._tick

    def move(self, blocks: IntArray, tick: int, rank: int) -> None:
        """Those of these blocks that were not used since `tick` change their rank."""
        same = self.unused_since(blocks, tick)
        if len(same):
            self.put(same, rank)

    def unused_since(self, blocks: IntArray, tick: int) -> IntArray:
        same: IntArray = blocks[self._ticks.take(blocks) == tick]
        return same

    def remove(self, blocks: IntArray) -> None:
        """They are no longer evictable; those that were not are passed over."""
        self._here -= int(np.count_nonzero(self._ticks.take(blocks)))
        self._ticks[blocks] = 0

    def pop(self, count: int) -> IntArray:
        """Take out the next `count` to give way, in order. There must be as many."""
        assert count <= self._here, "more evictions than evictable blocks"
        taken: list[IntArray] = []
        for queue in self._queues:
            while count and queue:
                tick, blocks = queue.popleft()
                self._queued -= len(blocks)
                blocks = self.unused_since(blocks, tick)
                if len(blocks) > count:
                    queue.appendleft((tick, blocks[count:]))
                    self._queued += len(blocks) - count
                    blocks = blocks[:count]
                if len(blocks):
                    self._ticks[blocks] = 0
                    self._here -= len(blocks)
                    count -= len(blocks)
                    taken.append(blocks)
        return np.concatenate(taken) if taken else EMPTY

    def _compact(self) -> None:
        """Drop what is out of date, so that queues stay in proportion to what is here."""
        self._queued = 0
        for queue in self._queues:
            kept = [(tick, self.unused_since(blocks, tick)) for tick, blocks in queue]
            queue.clear()
            queue.extend(entry for entry in kept if len(entry[1]))
            self._queued += sum(len(blocks) for _, blocks in queue)

"""The blocks of one KV group in one tier: which are free, how many requests refer to each, and which unreferenced ones
are kept because the prefix cache knows them. Knows nothing of tokens or tables.

A block is in exactly one place: free; held (refs > 0); or idle (refs == 0, cached), in the order in which idle blocks
give way (eviction.py).
"""

import numpy as np
import numpy.typing as npt

from headrace.core.batch import IntArray
from headrace.policy.eviction import PINNED, EvictionOrder

ABSENT = -1
"""In the place of a block: there is none."""


class BlockPool:
    """refs, epochs int32 [num_blocks]; cached bool [num_blocks]. A block's epoch rises each time it is taken, so
    a late write to a reused block can be recognized. most_pinned: blocks that may be pinned at most; beyond it the
    pins that end soonest are dropped."""

    def __init__(self, num_blocks: int, most_pinned: int = 0) -> None:
        self.num_blocks = num_blocks
        self.refs: IntArray = np.zeros(num_blocks, np.int32)
        self.epochs: IntArray = np.zeros(num_blocks, np.int32)
        self.cached = np.zeros(num_blocks, np.bool_)
        self.idle = EvictionOrder(num_blocks)
        # A stack; the lowest ids lie on top at first, so that a lightly used pool touches little memory.
        self._free: IntArray = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks
        self._most_pinned = most_pinned
        self._num_pinned = 0
        self._pinned_until: npt.NDArray[np.float64] = np.zeros(num_blocks, np.float64)

    @property
    def available(self) -> int:
        """Blocks that take() could give: free ones and idle ones."""
        return self._num_free + len(self.idle)

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_idle(self) -> int:
        return len(self.idle)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.available

    def shortage(self, count: int) -> int:
        """How many idle blocks must be evicted before take(count)."""
        return max(0, count - self._num_free)

    def evict(self, count: int) -> IntArray:
        """Free the next `count` idle blocks and return them. The caller forgets what they held."""
        blocks = self.idle.pop(count)
        self._let_go(blocks)
        return blocks

    def discard(self, blocks: IntArray) -> None:
        """Free these cached blocks as soon as nobody refers to them: what they hold is held elsewhere."""
        unused = blocks[self.refs[blocks] == 0]
        self.idle.remove(unused)
        self.cached[blocks] = False
        self._let_go(unused)

    def take(self, count: int) -> IntArray:
        """int32 [count]: free blocks, now held once. The caller has evicted enough."""
        top = self._num_free
        assert count <= top, "take() without enough evictions"
        self._num_free = top - count
        blocks = self._free[top - count : top][::-1].copy()
        self.refs[blocks] = 1
        self.epochs[blocks] += 1
        return blocks

    def share(self, blocks: IntArray) -> None:
        """One more reference to each of these cached blocks (all different)."""
        self.idle.remove(blocks)
        self.refs[blocks] += 1

    def touch(self, blocks: IntArray) -> None:
        """Those of these blocks that are idle were used just now."""
        idle = blocks[(self.refs[blocks] == 0) & self.cached[blocks]]
        if len(idle):
            self.idle.put(idle)

    def release(self, blocks: IntArray) -> tuple[IntArray, int]:
        """One reference less to each of these blocks (all different). Unreferenced ones become idle if cached,
        else free. Later blocks count as less recently used: a prefix is evicted from its end. Returns the blocks
        that became idle without being pinned, and their tick in the order of eviction."""
        left = self.refs[blocks] - 1
        self.refs[blocks] = left
        unused = blocks[left == 0]
        kept = self.cached[unused]
        if not kept.all():
            self._push(unused[~kept])
        idle = unused[kept][::-1]
        if self._num_pinned and len(idle):
            pinned = self._pinned_until[idle] > 0
            self.idle.put(idle[pinned], PINNED)
            idle = idle[~pinned]
        return idle, self.idle.put(idle) if len(idle) else 0

    def pin(self, blocks: IntArray, until: float) -> None:
        """Let these cached blocks (all different) give way last, until unpin() is called with a later time."""
        blocks = blocks[: self._most_pinned]
        self._pinned_until[blocks] = np.maximum(self._pinned_until[blocks], until)
        pinned = np.flatnonzero(self._pinned_until)
        if len(pinned) > self._most_pinned:
            ends = np.sort(self._pinned_until[pinned])
            self.unpin(float(ends[len(pinned) - self._most_pinned - 1]))
        else:
            self._num_pinned = len(pinned)

    def unpin(self, now: float) -> None:
        """Pins that end until now are over: their blocks are like any others used just now."""
        over = np.flatnonzero((self._pinned_until > 0) & (self._pinned_until <= now)).astype(np.int32)
        self._pinned_until[over] = 0
        self._num_pinned = int(np.count_nonzero(self._pinned_until))
        self.touch(over)

    def _let_go(self, blocks: IntArray) -> None:
        self.cached[blocks] = False
        if self._num_pinned:
            self._pinned_until[blocks] = 0
        self._push(blocks)

    def _push(self, blocks: IntArray) -> None:
        self._free[self._num_free : self._num_free + len(blocks)] = blocks
        self._num_free += len(blocks)

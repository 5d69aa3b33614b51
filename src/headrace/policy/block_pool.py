"""The blocks of one KV group: which are free, how many requests refer to each, and which unreferenced ones are
kept because the prefix cache knows them. Knows nothing of tokens or tables.

A block is in exactly one place: free; held (refs > 0); or idle (refs == 0, cached), in order of last use.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from headrace.core.batch import IntArray


class BlockPool:
    """refs, epochs int32 [num_blocks]; cached bool [num_blocks]. A block's epoch rises each time it is taken, so
    a late write to a reused block can be recognized."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs: IntArray = np.zeros(num_blocks, np.int32)
        self.epochs: IntArray = np.zeros(num_blocks, np.int32)
        self.cached = np.zeros(num_blocks, np.bool_)
        # A stack; the lowest ids lie on top at first, so that a lightly used pool touches little memory.
        self._free: IntArray = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that take() could give: free ones and idle ones."""
        return self._num_free + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.available

    def shortage(self, count: int) -> int:
        """How many idle blocks must be evicted before take(count)."""
        return max(0, count - self._num_free)

    def evict(self) -> int:
        """Free the idle block that was used least recently and return it. The caller forgets what it held."""
        block, _ = self._idle.popitem(last=False)
        self.cached[block] = False
        self._push(np.array([block], np.int32))
        return block

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
        for block in blocks[self.refs[blocks] == 0].tolist():
            del self._idle[block]
        self.refs[blocks] += 1

    def num_idle_among(self, blocks: IntArray) -> int:
        return int((self.refs[blocks] == 0).sum())

    def release(self, blocks: IntArray) -> None:
        """One reference less to each of these blocks (all different). Unreferenced ones become idle if cached,
        else free. Later blocks count as less recently used: a prefix is evicted from its end."""
        self.refs[blocks] -= 1
        unused = blocks[self.refs[blocks] == 0]
        kept = self.cached[unused]
        self._push(unused[~kept])
        for block in unused[kept][::-1].tolist():
            self._idle[block] = None

    def _push(self, blocks: IntArray) -> None:
        self._free[self._num_free : self._num_free + len(blocks)] = blocks
        self._num_free += len(blocks)

"""Until when blocks are kept as requests' hints ask (CacheHint): pins end at their time, and what had time to live
gives way first once it is over. Time is an argument.
"""

import heapq

from headrace.core.batch import IntArray
from headrace.policy.block_pool import BlockPool
from headrace.policy.eviction import EXPIRED


class HintClock:
    """pools: one per KV group."""

    def __init__(self, pools: list[BlockPool]) -> None:
        self._pools = pools
        self._unpin_at: list[float] = []
        self._expire_at: list[tuple[float, int, int, IntArray]] = []

    @property
    def pending(self) -> bool:
        """Whether time alone will end something."""
        return bool(self._unpin_at or self._expire_at)

    def pin(self, group: int, blocks: IntArray, until: float) -> None:
        """Those of these blocks that are cached give way last until then."""
        pool = self._pools[group]
        pool.pin(blocks[pool.cached[blocks]], until)
        heapq.heappush(self._unpin_at, until)

    def expire(self, group: int, blocks: IntArray, tick: int, at: float) -> None:
        """These blocks give way first from then on, unless they were used since their tick."""
        heapq.heappush(self._expire_at, (at, tick, group, blocks))

    def advance(self, now: float) -> None:
        """End what is over by now."""
        while self._unpin_at and self._unpin_at[0] <= now:
            heapq.heappop(self._unpin_at)
            for pool in self._pools:
                pool.unpin(now)
        while self._expire_at and self._expire_at[0][0] <= now:
            _, tick, group, blocks = heapq.heappop(self._expire_at)
            self._pools[group].idle.move(blocks, tick, EXPIRED)

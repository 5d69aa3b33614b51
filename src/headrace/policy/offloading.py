"""Which cached blocks of the device are copied to the tiers below it, and when; and what only the disk has is read
ahead of its turn. It orders copies and reads; tiers.py keeps the books of what is where.
"""

from collections import deque

import numpy as np

from headrace.core.batch import CopyKind, IntArray
from headrace.policy.block_pool import BlockPool
from headrace.policy.device_orders import DeviceOrders
from headrace.policy.hits import Hit, Hits
from headrace.policy.radix_cache import RadixCache
from headrace.policy.tiers import ON_DISK, Tiers

MOST_LOWERED = 8
"""Idle blocks that one step copies down."""


class Offloading:
    """pools: the device's blocks, one pool per KV group; orders: where copies between device and host are ordered."""

    def __init__(
        self, tiers: Tiers, cache: RadixCache, hits: Hits, pools: list[BlockPool], orders: DeviceOrders
    ) -> None:
        self._tiers = tiers
        self._cache = cache
        self._hits = hits
        self._pools = pools
        self._orders = orders
        self._idle_s = tiers.sizes.idle_s
        # (when, group, blocks, their tick): idle since then, to be copied down.
        self._idle: deque[tuple[float, int, IntArray, int]] = deque()

    @property
    def pending(self) -> bool:
        """Whether time alone will copy something down, or the disk still has to answer."""
        return bool(self._idle) or self._tiers.busy

    @property
    def has_orders(self) -> bool:
        """Whether something is to be moved, be there a step or not."""
        return self._orders.has_copies or self._tiers.has_orders

    def next_chore(self, now: float) -> float | None:
        """Seconds until something is to be moved that no request asks for; None if there is nothing."""
        if self.has_orders or self._tiers.busy:
            return 0.0
        return max(0.0, self._idle[0][0] + self._idle_s - now) if self._idle else None

    def at_once(self) -> None:
        """Whatever is idle has been idle for long enough."""
        self._idle_s = 0.0

    def lower(self, group: int, blocks: IntArray) -> None:
        """Copy whole cached blocks down, as far as the host has room and not yet has them."""
        for block in blocks.tolist():
            name = self._cache.name_of(group, block)
            if name is not None and (below := self._tiers.lower(name, group)) is not None:
                self._orders.copy(CopyKind.DOWN, group, block, below)

    def lower_later(self, group: int, blocks: IntArray, tick: int, now: float) -> None:
        """These became idle now, which is their tick in the order of eviction."""
        self._idle.append((now, group, blocks, tick))

    def lower_idle(self, now: float) -> None:
        """Copy down some of what was not used for long enough; it stays on the device until its place is needed."""
        room = MOST_LOWERED
        while room and self._idle and self._idle[0][0] + self._idle_s <= now:
            since, group, blocks, tick = self._idle.popleft()
            blocks = self._pools[group].idle.unused_since(blocks, tick)
            self.lower(group, blocks[:room])
            if len(blocks) > room:
                self._idle.appendleft((since, group, blocks[room:], tick))
            room -= min(room, len(blocks))

    def fetch(self, hit: Hit) -> int:
        """Have the disk read what only it has of a hit. Returns the number of the last read that brings any of it;
        0 if there is no room to read it into."""
        last = 0
        if hit.lower is None:
            return last
        for group in range(len(self._pools)):
            first = self._hits.first_visible(group, hit.tokens)
            for index in np.flatnonzero(hit.lower[group, first:] == ON_DISK).tolist():
                last = max(last, self._tiers.fetch(hit.names[first + index - hit.first_name], group))
        return last

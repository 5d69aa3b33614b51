"""Records what a prefix cache stores and gives up, as events for routers (block_events.py)."""

import numpy as np

from headrace.core.batch import IntArray
from headrace.policy.block_events import BlockEvent, BlockRemoved, BlockStored
from headrace.policy.radix_cache import RadixCache


class EventLog:
    """group: the KV group that stands for all; blocks of others are passed over."""

    def __init__(self, cache: RadixCache, group: int, block_size: int) -> None:
        self._cache = cache
        self._group = group
        self._block_size = block_size
        self._events: list[BlockEvent] = []

    def stored(self, group: int, blocks: IntArray) -> None:
        """The tree knows these blocks now."""
        if group != self._group:
            return
        for names, before, tokens in self._cache.runs_of(group, blocks):
            token_ids = np.frombuffer(tokens, np.int32).tolist()
            self._events.append(BlockStored(names, before, token_ids, self._block_size))

    def removed(self, group: int, blocks: IntArray) -> None:
        """The tree is about to forget these blocks."""
        if group != self._group:
            return
        names = [name for block in blocks.tolist() if (name := self._cache.name_of(group, block)) is not None]
        if names:
            self._events.append(BlockRemoved(names))

    def take(self) -> list[BlockEvent]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

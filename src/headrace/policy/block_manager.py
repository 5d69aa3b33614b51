"""Which blocks hold which positions of which slot, for every KV group: block tables, growth, prefix hits, and
what is freed when. Owns the pools and the prefix cache; the device's tables follow by the edits written here.

Blocks of full groups are kept from first to last; blocks of a group with a window are freed once no position
that may still be computed sees them. Equal full blocks are kept once: when a block turns out to be cached
already, the table is turned to the cached one (same prefix, same values, bit for bit) and the copy is freed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.batch import EMPTY, BlockEdits, IntArray
from headrace.policy.block_pool import BlockPool
from headrace.policy.prefix_cache import ABSENT, Node, PrefixCache


@dataclass(frozen=True, slots=True)
class Hit:
    """A usable prefix: its nodes and its length in tokens."""

    nodes: list[Node]
    tokens: int


class BlockManager:
    """block_size: tokens in a block. num_blocks, windows: one number per KV group (window None: full attention).
    reach: most positions that may be under way at once, which a window must span besides itself."""

    def __init__(
        self,
        *,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        num_blocks: tuple[int, ...],
        windows: tuple[int | None, ...],
        reach: int,
        caching: bool,
    ) -> None:
        self.block_size = block_size
        self.windows = windows
        self.pools = [BlockPool(n) for n in num_blocks]
        self.cache = PrefixCache(block_size, windows) if caching else None
        # Most blocks that any sequence holds at once, where a window bounds them.
        self._most_at_once = [None if w is None else -(-(w - 1 + reach) // block_size) + 1 for w in windows]
        width = -(-max_model_len // block_size)
        groups = len(num_blocks)
        self._tables = [np.full((num_slots, width), ABSENT, np.int32) for _ in range(groups)]
        # Positions below _capacity[slot] have a block in every group; blocks below index _first[g][slot] were freed
        # again.
        self._capacity: IntArray = np.zeros(num_slots, np.int32)
        self._first: IntArray = np.zeros((groups, num_slots), np.int32)
        # The cached chain of each slot: its last node, and how many blocks long it is.
        self._tip: list[Node | None] = [None] * num_slots
        self._chain: IntArray = np.zeros(num_slots, np.int32)
        # Rises whenever a request that did not fit might fit now.
        self.version = 0
        self._edits: list[tuple[IntArray, int, IntArray, IntArray, IntArray]] = []
        self.windowed = [g for g, window in enumerate(windows) if window is not None]

    @property
    def blocks_held(self) -> int:
        return sum(pool.num_held for pool in self.pools)

    @property
    def blocks_idle(self) -> int:
        return sum(pool.num_idle for pool in self.pools)

    def most_positions(self) -> int | None:
        """How many positions of one sequence fit when it has the pools for itself; None: any number."""
        bounds = [
            pool.num_blocks * self.block_size
            for pool, most in zip(self.pools, self._most_at_once, strict=True)
            if most is None or most > pool.num_blocks
        ]
        return min(bounds, default=None)

    def lookup(self, salt: str, tokens: IntArray, most: int) -> Hit:
        """The longest cached prefix of tokens, of at most `most` tokens."""
        nodes = self.cache.lookup(salt, tokens, most) if self.cache is not None else []
        return Hit(nodes, len(nodes) * self.block_size)

    def fits(
        self, hit: Hit, tokens: int, reserve: int, promised: list[int] | None = None, without: IntArray = EMPTY
    ) -> bool:
        """Whether a request of this many tokens fits beside the held blocks, leaving `reserve` in each group and, in
        group g, the promised[g] blocks that others are still to take. without: slots whose blocks count as released."""
        for group, pool in enumerate(self.pools):
            shared = self._visible(hit, group)
            refs, available = pool.refs, pool.available
            if len(without):
                spans = [slice(self._first[group, s], self._capacity[s] // self.block_size) for s in without.tolist()]
                held = [self._tables[group][s, span] for s, span in zip(without.tolist(), spans, strict=True)]
                refs = pool.refs - np.bincount(np.concatenate(held), minlength=pool.num_blocks)
                available += int(np.count_nonzero((refs == 0) & (pool.refs > 0)))
            # Idle blocks of the hit are no longer available once it is taken.
            needed = self._peak(group, tokens) - len(shared) + int(np.count_nonzero(refs[shared] == 0))
            if needed + reserve + (promised[group] if promised else 0) > available:
                return False
        return True

    def lacking(self, slots: IntArray, tokens: IntArray) -> list[int]:
        """How many blocks these slots have yet to take, in each group, to hold so many tokens each."""
        held = self._capacity[slots] // self.block_size
        blocks = -(-tokens // self.block_size)
        lacking = []
        for group, most in enumerate(self._most_at_once):
            if most is None:
                lacking.append(int(np.maximum(blocks - held, 0).sum()))
            else:
                held_now = held - self._first[group].take(slots)
                lacking.append(int(np.clip(np.minimum(blocks - held, most - held_now), 0, None).sum()))
        return lacking

    def admit(self, slot: int, salt: str, hit: Hit) -> None:
        """Give a slot its cached prefix."""
        self._capacity[slot] = hit.tokens
        for group, pool in enumerate(self.pools):
            shared = self._visible(hit, group)
            first = len(hit.nodes) - len(shared)
            self._first[group, slot] = first
            if len(shared):
                pool.share(shared)
                self._write(
                    np.full(len(shared), slot, np.int32),
                    group,
                    _count_from(first, len(shared)),
                    shared,
                    pool.epochs[shared],
                )
        if self.cache is not None:
            self._tip[slot] = self.cache.enter(hit.nodes[-1] if hit.nodes else self.cache.root(salt))
            self._chain[slot] = len(hit.nodes)

    def grow(self, slots: IntArray, needed: IntArray) -> bool:
        """Give each slot blocks for its first `needed` positions, all or nothing. False: there are not enough."""
        short = needed > self._capacity.take(slots)
        if not short.any():
            return True
        slots = slots[short]
        start = self._capacity[slots] // self.block_size
        count = (needed[short] + (self.block_size - 1)) // self.block_size - start
        total = int(count.sum())
        if total != len(slots):
            ends = np.cumsum(count)
            start = np.arange(total, dtype=np.int32) + np.repeat(start - ends + count, count).astype(np.int32)
            slots = np.repeat(slots, count)
        return self.extend(slots, start)

    def extend(self, slots: IntArray, index: IntArray) -> bool:
        """Give slots[i] a block at index[i] of its table, the next one of that slot, in every group: all or
        nothing. False: there are not enough."""
        if any(len(slots) > pool.available for pool in self.pools):
            return False
        for group, pool in enumerate(self.pools):
            blocks = self._take(group, len(slots))
            self._write(slots, group, index, blocks, pool.epochs[blocks])
        # Indices of one slot rise, so the last write to its capacity is the highest.
        self._capacity[slots] = (index + 1) * self.block_size
        return True

    def free_behind(self, slots: IntArray, done: IntArray) -> None:
        """Free what no position from done[i] on can see. Steps under way may still see positions before done."""
        for group in self.windowed:
            window = self.windows[group]
            assert window is not None
            first = np.maximum(done - (window - 1), 0) // self.block_size
            for i in np.flatnonzero(first > self._first[group].take(slots)).tolist():
                slot = int(slots[i])
                gone = self._tables[group][slot, self._first[group, slot] : first[i]]
                self._first[group, slot] = first[i]
                self.pools[group].release(gone)
                self.version += 1

    def remember(self, slot: int, tokens: IntArray, *, ending: bool = False) -> None:
        """Enter the full blocks of a slot's computed tokens into the prefix cache. ending: the slot is about to
        be released, so its table need not be turned to blocks that were cached before."""
        node = self._tip[slot]
        if self.cache is None or node is None:
            return
        known = int(self._chain[slot])
        full = len(tokens) // self.block_size
        if full <= known:
            return
        data = memoryview(tokens[known * self.block_size : full * self.block_size].tobytes())
        width = 4 * self.block_size
        tip = node
        for index in range(known, full):
            at = (index - known) * width
            node = self.cache.extend(node, bytes(data[at : at + width]))
            for group in range(len(self.pools)):
                self._store(node, group, slot, index, ending)
        self.cache.enter(node)
        self.cache.leave(tip)
        self._tip[slot] = node
        self._chain[slot] = full
        self.version += 1

    def release(self, slot: int) -> None:
        """Take all blocks from a slot; cached ones stay until their place is needed."""
        self.version += 1
        for group, pool in enumerate(self.pools):
            last = self._capacity[slot] // self.block_size
            pool.release(self._tables[group][slot, self._first[group, slot] : last])
            self._first[group, slot] = 0
        self._capacity[slot] = 0
        tip = self._tip[slot]
        if self.cache is not None and tip is not None:
            self.cache.leave(tip)
            self._tip[slot] = None
            self._chain[slot] = 0

    def take_edits(self) -> BlockEdits:
        """The table writes since the last call, in order."""
        if not self._edits:
            return _NO_EDITS
        edits, self._edits = self._edits, []
        if len(edits) == 1:
            slots, group, index, blocks, epochs = edits[0]
            return BlockEdits(slots, np.full(len(slots), group, np.int32), index, blocks, epochs)
        return BlockEdits(
            np.concatenate([edit[0] for edit in edits]),
            np.repeat(np.array([edit[1] for edit in edits], np.int32), [len(edit[0]) for edit in edits]),
            np.concatenate([edit[2] for edit in edits]),
            np.concatenate([edit[3] for edit in edits]),
            np.concatenate([edit[4] for edit in edits]),
        )

    def _peak(self, group: int, tokens: int) -> int:
        """Most blocks that a sequence of this many positions ever holds at once."""
        blocks = -(-tokens // self.block_size)
        most = self._most_at_once[group]
        return blocks if most is None else min(blocks, most)

    def _visible(self, hit: Hit, group: int) -> IntArray:
        """The hit's blocks of this group that the next position sees."""
        if self.cache is None or not hit.nodes:
            return _NONE
        first = self.cache.first_visible(group, hit.tokens)
        return np.array([node.blocks[group] for node in hit.nodes[first:]], np.int32)

    def _take(self, group: int, count: int) -> IntArray:
        pool = self.pools[group]
        for _ in range(pool.shortage(count)):
            block = pool.evict()
            assert self.cache is not None
            self.cache.forget(group, block)
        return pool.take(count)

    def _store(self, node: Node, group: int, slot: int, index: int, ending: bool) -> None:
        if index < self._first[group, slot]:
            return
        assert self.cache is not None
        pool = self.pools[group]
        own = int(self._tables[group][slot, index])
        cached = node.blocks[group]
        if cached == ABSENT:
            self.cache.store(node, group, own)
            pool.cached[own] = True
        elif cached != own and not ending:
            turned = np.array([cached], np.int32)
            pool.share(turned)
            self._write(np.array([slot], np.int32), group, np.array([index], np.int32), turned, pool.epochs[turned])
            pool.release(np.array([own], np.int32))

    def _write(self, slots: IntArray, group: int, index: IntArray, blocks: IntArray, epochs: IntArray) -> None:
        self._tables[group][slots, index] = blocks
        self._edits.append((slots, group, index, blocks, epochs))


_NONE: IntArray = np.zeros(0, np.int32)
_NO_EDITS = BlockEdits()


def _count_from(start: int, count: int) -> IntArray:
    return np.arange(start, start + count, dtype=np.int32)

"""Which blocks hold which positions of which slot, for every KV group: block tables, growth, prefix hits, and
what is freed when. Owns the pools and the prefix cache; the device's tables follow by the edits written here.

Blocks of full groups are kept from first to last; blocks of a group with a window are freed once no position
that may still be computed sees them. Equal blocks are kept once: when a block turns out to be cached already, the
table is turned to the cached one (same prefix, same values, bit for bit) and the copy is freed. A block of which only
the first tokens are wanted is copied, so that a hit is exact to the token.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from headrace.core.batch import EMPTY, BlockCopies, BlockEdits, IntArray
from headrace.core.request import CacheHint
from headrace.policy.block_pool import BlockPool
from headrace.policy.cache_report import CacheReport, Miss
from headrace.policy.eviction import EXPIRED
from headrace.policy.radix_cache import ABSENT, Inserted, Match, Node, RadixCache
from headrace.policy.slots import Slots

PINNED_SHARE = 0.25
"""Most of a pool that pins may keep."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A usable prefix. tokens: its length; blocks int32 [groups, n]: its whole blocks, ABSENT where no later position
    sees them; part int32 [groups]: the blocks whose first tokens end it, to be copied, if tokens is not a multiple
    of the block size. awaits: the slot that computes the block after it right now, or -1; awaited: the positions that
    both begin with, so worth waiting for."""

    tokens: int
    blocks: IntArray
    part: IntArray | None
    match: Match | None
    awaits: int = -1
    awaited: int = 0


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
        self.pools = [BlockPool(n, int(n * PINNED_SHARE)) for n in num_blocks]
        self.cache = RadixCache(block_size, num_blocks, most_lost=sum(num_blocks)) if caching else None
        # Most blocks that any sequence holds at once, where a window bounds them.
        self._most_at_once = [None if w is None else -(-(w - 1 + reach) // block_size) + 1 for w in windows]
        width = -(-max_model_len // block_size)
        groups = len(num_blocks)
        self._no_blocks: IntArray = np.empty((groups, 0), np.int32)
        self._tables = np.full((groups, num_slots, width), ABSENT, np.int32)
        # Positions below _capacity[slot] have a block in every group; blocks below index _first[g, slot] were freed
        # again.
        self._capacity: IntArray = np.zeros(num_slots, np.int32)
        self._first: IntArray = np.zeros((groups, num_slots), np.int32)
        # The cached chain of each slot: its last node, and how many blocks long it is.
        self._tip: list[Node | None] = [None] * num_slots
        self._chain: IntArray = np.zeros(num_slots, np.int32)
        self._request_ids = [""] * num_slots
        # Rises whenever a request that did not fit might fit now.
        self.version = 0
        self._now = 0.0
        # (time, what is over then): see clock().
        self._unpin_at: list[float] = []
        self._expire_at: list[tuple[float, int, int, IntArray]] = []
        self._edits: list[tuple[IntArray, int, IntArray, IntArray, IntArray]] = []
        self._copies: list[tuple[int, int, int]] = []
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

    @property
    def timed(self) -> bool:
        """Whether time alone changes what is kept: see clock()."""
        return bool(self._unpin_at or self._expire_at)

    def clock(self, now: float) -> None:
        """It is `now` (seconds): end what was pinned or had time to live until then."""
        self._now = now
        while self._unpin_at and self._unpin_at[0] <= now:
            heapq.heappop(self._unpin_at)
            for pool in self.pools:
                pool.unpin(now)
        while self._expire_at and self._expire_at[0][0] <= now:
            _, tick, group, blocks = heapq.heappop(self._expire_at)
            self.pools[group].idle.move(blocks, tick, EXPIRED)

    # Prefix hits

    def lookup(self, salt: str, tokens: IntArray, most: int, running: Slots | None = None) -> Hit:
        """The longest cached prefix of tokens, of at most `most` tokens. Of requests that run now, what they have
        computed counts, and what they are about to compute is worth waiting for."""
        if self.cache is None:
            return Hit(0, self._no_blocks, None, None)
        data = tokens[:most].tobytes()
        match = self.cache.walk(salt, data)
        awaits = awaited = -1
        while running is not None and match.end is not None and match.end.tips:
            slot, known = self._ahead(match.end.tips, tokens[:most], match.blocks, running)
            if known <= match.blocks:
                break
            done = min(int(running.done[slot]) // self.block_size, known)
            if done <= match.blocks:
                awaits, awaited = slot, known * self.block_size
                break
            self.remember(slot, running.tokens[slot, : done * self.block_size])
            match = self.cache.walk(salt, data)
        hit = self._usable(match)
        return hit if awaits < 0 else replace(hit, awaits=awaits, awaited=awaited)

    def _ahead(self, tips: set[int], tokens: IntArray, blocks: int, running: Slots) -> tuple[int, int]:
        """Which of the running requests that have come as far as tokens' first `blocks` blocks knows most of what
        comes next, and how many blocks it knows."""
        start = blocks * self.block_size
        best, most = -1, 0
        if len(tokens) - start < self.block_size:
            return best, most
        here = np.fromiter(tips, np.intp, len(tips))
        alike = running.tokens[here, start] == tokens[start]
        for slot in here[alike].tolist():
            stop = min(len(tokens), running.num_named(slot))
            differ = np.flatnonzero(running.tokens[slot, start:stop] != tokens[start:stop])
            known = (start + int(differ[0]) if len(differ) else stop) // self.block_size
            if known > most:
                best, most = slot, known
        return best, most

    def _usable(self, match: Match) -> Hit:
        """Shorten a match to what the next position can read back: all blocks of groups without a window, and of
        those with one only the blocks that it still sees."""
        parts = [node.blocks[:, :count] for node, count in match.path]
        # A copy: the tree's own arrays change as blocks are evicted.
        blocks = np.concatenate(parts, axis=1) if parts else self._no_blocks
        length = match.blocks
        # gaps[g][n]: index of the last block before block n that group g lacks, or -1.
        gaps: dict[int, IntArray] = {}
        for group, window in enumerate(self.windows):
            lacking = np.flatnonzero(blocks[group] == ABSENT)
            if window is None:
                length = min(length, int(lacking[0])) if len(lacking) else length
            else:
                gaps[group] = np.full(match.blocks + 1, -1, np.int32)
                gaps[group][lacking + 1] = lacking
                np.maximum.accumulate(gaps[group], out=gaps[group])
        if length == match.blocks and match.tail is not None:
            part = match.tail.blocks[:, match.tail_index].copy()
            tokens = length * self.block_size + match.tail_tokens
            if int(part.min()) != ABSENT and self._seen(gaps, length, tokens):
                return Hit(tokens, blocks, part, match)
        while length and not self._seen(gaps, length, length * self.block_size):
            length -= 1
        return Hit(length * self.block_size, blocks[:, :length], None, match)

    def _seen(self, gaps: dict[int, IntArray], length: int, position: int) -> bool:
        return all(gaps[group][length] < self._first_visible(group, position) for group in self.windowed)

    def report(self, salt: str, tokens: IntArray, most: int, hit: Hit) -> CacheReport:
        """Why a hit is what it is, for a request of which at most `most` tokens may come from the cache."""
        at, match = hit.tokens, hit.match
        if self.cache is None or match is None:
            return CacheReport()
        if at >= most:
            return CacheReport(at, at=at, miss=Miss.NOTHING if most >= len(tokens) - 1 else Miss.SCORED)
        known = match.blocks * self.block_size + match.tail_tokens
        if known > at:
            lost = next((node.lost for node, _ in reversed(match.path) if node.lost is not None), None)
            when, whom = lost if lost is not None else (None, None)
            return CacheReport(at, at=at, miss=Miss.EVICTED, evicted_at=when, evicted_for=whom)
        others = self.cache.next_tokens(match)
        if others:
            return CacheReport(at, at=at, miss=Miss.DIVERGED, token=int(tokens[at]), others=others)
        if at == 0 and self.cache.known_elsewhere(salt, tokens[: self.block_size].tobytes()):
            return CacheReport(miss=Miss.NAMESPACE)
        return CacheReport(at, at=at, miss=Miss.NEW)

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

    def admit(self, slot: int, salt: str, hit: Hit, request_id: str = "") -> None:
        """Give a slot its cached prefix, and a block of its own for the part of a block that ends it, if one does."""
        self._request_ids[slot] = request_id
        whole = hit.blocks.shape[1]
        self._capacity[slot] = whole * self.block_size
        for group, pool in enumerate(self.pools):
            shared = self._visible(hit, group)
            first = whole - len(shared)
            self._first[group, slot] = first
            if len(shared):
                pool.share(shared)
                self._write(
                    np.full(len(shared), slot, np.int32),
                    group,
                    _span(first, whole),
                    shared,
                    pool.epochs[shared],
                )
        if self.cache is None:
            return
        tip = self.cache.root(salt)
        if hit.match is not None and whole:
            tip = self.cache.tip(hit.match, whole)
        self.cache.enter(tip, slot)
        self._tip[slot] = tip
        self._chain[slot] = whole
        if hit.part is not None:
            for pool, source in zip(self.pools, hit.part.tolist(), strict=True):
                pool.touch(np.array([source], np.int32))
            grown = self.grow_one(slot, (whole + 1) * self.block_size)
            assert grown, "blocks that fit could not be taken"
            copies = self._tables[:, slot, whole].tolist()
            self._copies += zip(range(len(self.pools)), hit.part.tolist(), copies, strict=True)

    # Growth

    def grow_one(self, slot: int, needed: int) -> bool:
        """grow() for a single slot, at a smaller cost."""
        start, stop = int(self._capacity[slot]) // self.block_size, -(-needed // self.block_size)
        if stop <= start:
            return True
        if any(stop - start > pool.available for pool in self.pools):
            return False
        slots, index = np.full(stop - start, slot, np.int32), _span(start, stop)
        for group, pool in enumerate(self.pools):
            blocks = self._take(group, stop - start, slot)
            self._tables[group, slot, start:stop] = blocks
            self._edits.append((slots, group, index, blocks, pool.epochs[blocks]))
        self._capacity[slot] = stop * self.block_size
        return True

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
            blocks = self._take(group, len(slots), int(slots[-1]))
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
                gone = self._tables[group, slot, self._first[group, slot] : first[i]]
                self._first[group, slot] = first[i]
                self.pools[group].release(gone)
                self.version += 1

    # Remembering and letting go

    def remember(self, slot: int, tokens: IntArray, *, ending: bool = False) -> None:
        """Enter the blocks of a slot's computed tokens into the prefix cache. ending: the slot is about to be
        released, so its table need not be turned to blocks that were cached before, and what its last block holds
        is entered as well, even if it is not full."""
        tip = self._tip[slot]
        if self.cache is None or tip is None:
            return
        known = int(self._chain[slot])
        full, rest = divmod(len(tokens), self.block_size)
        if full > known:
            data = tokens[known * self.block_size : full * self.block_size].tobytes()
            done = self.cache.insert(tip, data, self._own(slot, known, full), slot)
            self._tip[slot] = tip = done.tip
            self._chain[slot] = full
            self._settle(slot, done, ending)
            self.version += 1
        if ending and rest:
            own = self._tables[:, slot, full : full + 1].copy()
            self._settle(slot, self.cache.insert_part(tip, tokens[full * self.block_size :].tobytes(), own), True)

    def release(self, slot: int, hint: CacheHint | None = None) -> None:
        """Take all blocks from a slot; cached ones stay until their place is needed, or as its hint asks."""
        self.version += 1
        last = int(self._capacity[slot]) // self.block_size
        for group, pool in enumerate(self.pools):
            blocks = self._tables[group, slot, self._first[group, slot] : last].copy()
            if hint is not None and hint.pin is not None:
                until = self._now + hint.pin
                pool.pin(blocks[pool.cached[blocks]], until)
                heapq.heappush(self._unpin_at, until)
            idle, tick = pool.release(blocks)
            if hint is not None and hint.ttl_s is not None and len(idle):
                heapq.heappush(self._expire_at, (self._now + hint.ttl_s, tick, group, idle))
            self._first[group, slot] = 0
        self._capacity[slot] = 0
        tip = self._tip[slot]
        if self.cache is not None and tip is not None:
            self.cache.leave(tip, slot)
            self._tip[slot] = None
            self._chain[slot] = 0

    # What the device is told

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

    def take_copies(self) -> BlockCopies:
        """The copies of blocks since the last call, in order."""
        if not self._copies:
            return _NO_COPIES
        columns = np.ascontiguousarray(np.array(self._copies, np.int32).T)
        self._copies = []
        return BlockCopies(*columns)

    def _peak(self, group: int, tokens: int) -> int:
        """Most blocks that a sequence of this many positions ever holds at once."""
        blocks = -(-tokens // self.block_size)
        most = self._most_at_once[group]
        return blocks if most is None else min(blocks, most)

    def _first_visible(self, group: int, position: int) -> int:
        """Index of the first block that a token at this position still sees in this group."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def _visible(self, hit: Hit, group: int) -> IntArray:
        """The hit's whole blocks of this group that the next position sees."""
        return hit.blocks[group, self._first_visible(group, hit.tokens) :]

    def _own(self, slot: int, start: int, stop: int) -> IntArray:
        """A copy of a slot's blocks from index start on: int32 [groups, n], ABSENT behind a window."""
        own = self._tables[:, slot, start:stop].copy()
        for group in self.windowed:
            own[group, : max(0, int(self._first[group, slot]) - start)] = ABSENT
        return own

    def _take(self, group: int, count: int, slot: int) -> IntArray:
        pool = self.pools[group]
        if short := pool.shortage(count):
            assert self.cache is not None
            self.cache.forget(group, pool.evict(short), self._now, self._request_ids[slot])
        return pool.take(count)

    def _settle(self, slot: int, done: Inserted, ending: bool) -> None:
        """Let pools and table follow what the tree made of a slot's blocks."""
        for group, blocks in done.dropped:
            self.pools[group].discard(blocks)
        for group, blocks in done.stored:
            self.pools[group].cached[blocks] = True
        if ending:
            return
        for group, index, blocks in done.known:
            pool = self.pools[group]
            own = self._tables[group, slot, index]
            pool.share(blocks)
            self._write(np.full(len(blocks), slot, np.int32), group, index, blocks, pool.epochs[blocks])
            pool.release(own)

    def _write(self, slots: IntArray, group: int, index: IntArray, blocks: IntArray, epochs: IntArray) -> None:
        self._tables[group, slots, index] = blocks
        self._edits.append((slots, group, index, blocks, epochs))


_NO_EDITS = BlockEdits()
_NO_COPIES = BlockCopies()


def _span(start: int, stop: int) -> IntArray:
    return np.arange(start, stop, dtype=np.int32)

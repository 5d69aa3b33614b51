"""Which blocks hold which positions of which slot, for every KV group: block tables, growth, prefix hits, and
what is freed when. Owns the pools and the prefix cache; the device's tables follow by the edits written here.

Blocks of full groups are kept from first to last; blocks of a group with a window are freed once no position
that may still be computed sees them. Equal blocks are kept once: when a block turns out to be cached already, the
table is turned to the cached one (same prefix, same values, bit for bit) and the copy is freed. A block of which only
the first tokens are wanted is copied, so that a hit is exact to the token. What gives way goes to lower tiers, if there
are any (offloading.py), and comes back from there.
"""

from collections.abc import Iterable

import numpy as np
from msgspec import structs

from headrace.core.batch import EMPTY, BlockCopies, BlockEdits, CopyKind, IntArray
from headrace.core.disk import DiskResult, DiskTransfer
from headrace.core.request import CacheHint
from headrace.policy.block_events import BlockEvent
from headrace.policy.block_pool import ABSENT, BlockPool
from headrace.policy.cache_report import CacheReport
from headrace.policy.device_orders import CopyNow, DeviceOrders
from headrace.policy.event_log import EventLog
from headrace.policy.eviction import EXPIRED
from headrace.policy.hint_clock import HintClock
from headrace.policy.hits import Hit, Hits
from headrace.policy.offloading import Offloading
from headrace.policy.radix_cache import Inserted, Node, RadixCache
from headrace.policy.slots import Slots
from headrace.policy.tiers import Tiers

PINNED_SHARE = 0.25
"""Most of a pool that pins may keep."""


class BlockManager:
    """block_size: tokens in a block. num_blocks, windows: one number per KV group (window None: full attention).
    reach: most positions that may be under way at once, which a window must span besides itself. fingerprint: of the
    numbers in the blocks. tiers: what lies below the device, if anything does; it needs caching.
    recording: whether take_events() says what is stored and removed. copy_now: who makes copies of its own."""

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
        fingerprint: str = "",
        tiers: Tiers | None = None,
        recording: bool = False,
        copy_now: CopyNow | None = None,
    ) -> None:
        self.block_size = block_size
        self.blocks_total = sum(num_blocks)
        self.windows = windows
        self.reach = reach
        self.pools = [BlockPool(n, int(n * PINNED_SHARE)) for n in num_blocks]
        self.tiers = tiers
        self.cache: RadixCache | None = None
        self._hits: Hits | None = None
        self._orders = DeviceOrders(copy_now)
        self._offloading: Offloading | None = None
        if caching:
            self.cache = RadixCache(block_size, num_blocks, sum(num_blocks), fingerprint)
            self._hits = Hits(self.cache, block_size, windows, tiers)
            if tiers is not None:
                self._offloading = Offloading(tiers, self.cache, self._hits, self.pools, self._orders)
        # Most blocks that any sequence holds at once, where a window bounds them.
        self._most_at_once = [None if w is None else -(-(w - 1 + reach) // block_size) + 1 for w in windows]
        width = -(-max_model_len // block_size)
        groups = len(num_blocks)
        # What is above a slot's capacity or below its first block means nothing; memory is touched as it is used.
        self._tables = np.zeros((groups, num_slots, width), np.int32)
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
        # Blocks of each group that are left free for prompts that come from elsewhere, and how many prompts have blocks
        # here without a running request (exchange.py).
        self.set_aside = self.lent = 0
        self.given = 0  # blocks, to the prefix cache so far
        self._now = 0.0
        self._hint_clock = HintClock(self.pools)
        # Events tell of one group, the first without a window if there is one.
        told = windows.index(None) if None in windows else 0
        self._events = EventLog(self.cache, told, block_size) if recording and self.cache is not None else None
        self.windowed = [g for g, window in enumerate(windows) if window is not None]

    @property
    def blocks_held(self) -> int:
        held = 0
        for pool in self.pools:
            held += pool.num_held
        return held

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
        """Whether time alone changes what is kept, see clock(), or what the disk will have done."""
        pending = self._offloading is not None and self._offloading.pending
        return pending or self._hint_clock.pending

    def clock(self, now: float) -> None:
        """It is `now` (seconds): end what was pinned or had time to live until then, copy down what has been idle."""
        self._now = now
        self._hint_clock.advance(now)
        if self._offloading is not None:
            self._offloading.lower_idle(now)

    # Prefix hits

    def lookup(self, salt: str, tokens: IntArray, most: int, running: Slots | None = None, *, disk: bool = True) -> Hit:
        """The longest cached prefix of tokens, of at most `most` tokens. Of requests that run now, what they have
        computed counts, and what they are about to compute is worth waiting for. disk: whether what only the disk
        has counts; it must be fetched before the hit is admitted."""
        if self.cache is None or self._hits is None:
            return Hit(0, np.empty((len(self.pools), 0), np.int32))
        data = tokens[:most].tobytes()
        match = self.cache.walk(salt, data)
        while running is not None and match.end is not None and match.end.tips:
            slot, known = self._hits.ahead(match.end.tips, tokens[:most], match.blocks, running)
            if known <= match.blocks:
                break
            done = min(int(running.done[slot]) // self.block_size, known)
            if done <= match.blocks:
                hit = self._hits.of(match, salt, disk=disk)
                return (
                    hit
                    if hit.tokens > known * self.block_size
                    else structs.replace(hit, awaits=slot, awaited=known * self.block_size)
                )
            self.remember(slot, running.tokens[slot, : done * self.block_size])
            match = self.cache.walk(salt, data)
        return self._hits.of(match, salt, disk=disk)

    def report(self, salt: str, tokens: IntArray, most: int, hit: Hit) -> CacheReport:
        """Why a hit is what it is, for a request of which at most `most` tokens may come from the cache."""
        return CacheReport() if self._hits is None else self._hits.report(salt, tokens, most, hit)

    def fits(
        self, hit: Hit, tokens: int, reserve: int, promised: list[int] | None = None, without: IntArray = EMPTY
    ) -> bool:
        """Whether a request of this many tokens fits beside the held blocks, leaving `reserve` in each group and, in
        group g, the promised[g] blocks that others are still to take. without: slots whose blocks count as released."""
        reserve += self.set_aside
        for group, pool in enumerate(self.pools):
            shared = self._there(hit, group)
            refs, available = pool.refs, pool.available
            if len(without):
                spans = [slice(self._first[group, s], self._capacity[s] // self.block_size) for s in without.tolist()]
                held = [self._tables[group][s, span] for s, span in zip(without.tolist(), spans, strict=True)]
                refs = pool.refs - np.bincount(np.concatenate(held), minlength=pool.num_blocks)
                available += int(np.count_nonzero((refs == 0) & (pool.refs > 0)))
            # Idle blocks of the hit are no longer available once it is taken.
            needed = self.peak(group, tokens) - len(shared) + int(np.count_nonzero(refs[shared] == 0))
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
                index = _span(first, whole)
                if hit.lower is not None:
                    index, shared = index[shared != ABSENT], shared[shared != ABSENT]
                pool.share(shared)
                self._write(np.full(len(shared), slot, np.int32), group, index, shared, pool.epochs[shared])
        if self.cache is None:
            return
        tip, chain = self.cache.root(salt), 0
        if hit.match is not None and whole:
            # What comes from below is entered anew.
            chain = whole if hit.lower is None else int((hit.lower != ABSENT).any(axis=0).argmax())
            tip = self.cache.tip(hit.match, chain) if chain else tip
        self.cache.enter(tip, slot)
        self._tip[slot] = tip
        self._chain[slot] = chain
        if hit.lower is not None and hit.match is not None:
            self._raise(slot, hit.lower)
            start, end = (4 * self.block_size * index for index in (chain, whole))
            self._enter(slot, hit.match.data[start:end], chain, whole, ending=False)
        if hit.part is not None:
            for pool, source in zip(self.pools, hit.part.tolist(), strict=True):
                pool.touch(np.array([source], np.int32))
            grown = self.grow_one(slot, (whole + 1) * self.block_size)
            assert grown, "blocks that fit could not be taken"
            copies = self._tables[:, slot, whole].tolist()
            for group, (source, destination) in enumerate(zip(hit.part.tolist(), copies, strict=True)):
                self._orders.copy(CopyKind.DEVICE, group, source, destination)

    def hold(self, hit: Hit) -> None:
        """Let nobody take the blocks of a hit until it is dropped."""
        for group, pool in enumerate(self.pools):
            pool.share(self._there(hit, group))

    def drop(self, hit: Hit) -> None:
        """A hit that was held is no longer needed."""
        for group, pool in enumerate(self.pools):
            pool.release(self._there(hit, group))
        self.version += 1

    # Lower tiers

    def fetch(self, hit: Hit) -> int:
        """Have the disk read what only it has of a hit. Returns the number of the last read that brings any of it;
        0 if there is no room to read it into."""
        return 0 if self._offloading is None else self._offloading.fetch(hit)

    def prefetch(self, salt: str, tokens: IntArray, most: int) -> None:
        """Have the disk read what it has of a request that will wait for a while."""
        if self.tiers is not None and self.tiers.disk_bytes:
            self.fetch(self.lookup(salt, tokens, most))

    def take_results(self, results: Iterable[DiskResult]) -> None:
        """Take in what the disk has done."""
        if self.tiers is not None and self.tiers.arrived(results):
            self.version += 1

    def take_transfers(self) -> tuple[DiskTransfer, ...]:
        """What the disk is to do once the copies up to now are made."""
        return () if self.tiers is None else self.tiers.take_orders()

    @property
    def has_moves(self) -> bool:
        """Whether something is to be moved between tiers, be there a step or not."""
        return self._offloading is not None and self._offloading.has_orders

    def next_chore(self, now: float) -> float | None:
        """Seconds until something is to be moved that no request asks for; None if there is nothing."""
        return None if self._offloading is None else self._offloading.next_chore(now)

    def lower_at_once(self) -> None:
        """Whatever is idle has been idle for long enough."""
        if self._offloading is not None:
            self._offloading.at_once()

    def _raise(self, slot: int, lower: IntArray) -> None:
        """Give a slot blocks for those of its prefix that the host has, and order the copies."""
        assert self.tiers is not None
        for group, pool in enumerate(self.pools):
            first = int(self._first[group, slot])
            index = first + np.flatnonzero(lower[group, first:] != ABSENT).astype(np.int32)
            if not len(index):
                continue
            sources = lower[group, index]
            self.tiers.hold(group, sources)
            blocks = self._take(group, len(index), slot)
            self._write(np.full(len(index), slot, np.int32), group, index, blocks, pool.epochs[blocks])
            for source, destination in zip(sources.tolist(), blocks.tolist(), strict=True):
                self._orders.copy(CopyKind.UP, group, source, destination)
            self.tiers.let_go(group, sources)

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
            self._orders.write(slots, group, index, blocks, pool.epochs[blocks])
        self._capacity[slot] = stop * self.block_size
        return True

    def grow(self, slots: IntArray, needed: IntArray) -> bool:
        """Give each slot blocks for its first `needed` positions, all or nothing. False: there are not enough."""
        short = (needed > self._capacity.take(slots)).nonzero()[0]
        if not len(short):
            return True
        if len(short) == 1:
            return self.grow_one(int(slots[short[0]]), int(needed[short[0]]))
        slots = slots.take(short)
        start = self._capacity.take(slots) // self.block_size
        count = (needed.take(short) + (self.block_size - 1)) // self.block_size - start
        total = int(count.sum())
        if total != len(slots):
            ends = np.cumsum(count)
            start = np.arange(total, dtype=np.int32) + np.repeat(start - ends + count, count).astype(np.int32)
            slots = np.repeat(slots, count)
        return self.extend(slots, start)

    def room(self, slots: IntArray, ends: IntArray) -> int:
        """How many positions from ends[i] on every one of these slots has blocks for."""
        return int((self._capacity.take(slots) - ends).min())

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

    def grow_towards(self, slots: IntArray, ends: IntArray, more: IntArray) -> IntArray:
        """Give slots that have blocks for ends[i] positions blocks for more[i] others; where there are not enough, what
        they have must do. Returns how many of the others are provided for."""
        if self.grow(slots, ends + more):
            return more
        room: IntArray = np.minimum(more, self._capacity.take(slots) - ends)
        return room

    def table(self, slot: int) -> IntArray:
        """The slot's blocks: a view, int32 [groups, n]. What lies behind a window means nothing."""
        return self._tables[:, slot, : int(self._capacity[slot]) // self.block_size]

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
        if self.cache is None or self._tip[slot] is None:
            return
        full, rest = divmod(len(tokens), self.block_size)
        if full > (known := int(self._chain[slot])):
            new = tokens[known * self.block_size : full * self.block_size]
            self._enter(slot, new.tobytes(), known, full, ending=ending)
            self.version += 1
        if ending and rest:
            own, tip = self._tables[:, slot, full : full + 1].copy(), self._tip[slot]
            assert tip is not None
            self._settle(slot, self.cache.insert_part(tip, tokens[full * self.block_size :].tobytes(), own), True)

    def _enter(self, slot: int, data: bytes, known: int, full: int, *, ending: bool) -> None:
        """Enter a slot's blocks from `known`, where its chain ends, to `full`; data: their tokens."""
        tip = self._tip[slot]
        assert self.cache is not None and tip is not None
        done = self.cache.insert(tip, data, self._own(slot, known, full), slot)
        self._tip[slot] = done.tip
        self._chain[slot] = full
        self._settle(slot, done, ending)

    def release(self, slot: int, hint: CacheHint | None = None, *, swap: bool = False) -> None:
        """Take all blocks from a slot; cached ones stay until their place is needed, or as its hint asks. swap: those
        that nobody else uses are copied down now and give way first."""
        self.version += 1
        last = int(self._capacity[slot]) // self.block_size
        for group, pool in enumerate(self.pools):
            blocks = self._tables[group, slot, self._first[group, slot] : last].copy()
            if hint is not None and hint.pin is not None:
                self._hint_clock.pin(group, blocks, self._now + hint.pin)
            idle, tick = pool.release(blocks)
            if len(idle) and self._offloading is not None:
                if swap:
                    self._offloading.lower(group, idle)
                    pool.idle.move(idle, tick, EXPIRED)
                else:
                    self._offloading.lower_later(group, idle, tick, self._now)
            if hint is not None and hint.ttl_s is not None and len(idle):
                self._hint_clock.expire(group, idle, tick, self._now + hint.ttl_s)
            self._first[group, slot] = 0
        self._capacity[slot] = 0
        tip = self._tip[slot]
        if self.cache is not None and tip is not None:
            self.cache.leave(tip, slot)
            self._tip[slot] = None
            self._chain[slot] = 0

    def take_events(self) -> list[BlockEvent]:
        """What was stored and removed since the last call, in order."""
        return [] if self._events is None else self._events.take()

    # What the device is told

    def take_edits(self) -> BlockEdits:
        """The table writes since the last call, in order."""
        return self._orders.take_edits()

    def take_copies(self) -> BlockCopies:
        """The copies of blocks since the last call, in order."""
        return self._orders.take_copies()

    def peak(self, group: int, tokens: int) -> int:
        """Most blocks that a sequence of this many positions ever holds at once."""
        blocks = -(-tokens // self.block_size)
        most = self._most_at_once[group]
        return blocks if most is None else min(blocks, most)

    def _visible(self, hit: Hit, group: int) -> IntArray:
        """The hit's whole blocks of this group that the next position sees."""
        first = 0 if self._hits is None else self._hits.first_visible(group, hit.tokens)
        return hit.blocks[group, first:]

    def _there(self, hit: Hit, group: int) -> IntArray:
        """Those of them that the device has."""
        visible = self._visible(hit, group)
        there: IntArray = visible[visible != ABSENT]
        return there

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
            given = pool.evict(short)
            if self._offloading is not None:
                self._offloading.lower(group, given)
            if self._events is not None:
                self._events.removed(group, given)
            self.cache.forget(group, given, self._now, self._request_ids[slot])
        return pool.take(count)

    def _settle(self, slot: int, done: Inserted, ending: bool) -> None:
        """Let pools and table follow what the tree made of a slot's blocks."""
        for group, blocks in done.dropped:
            self.pools[group].discard(blocks)
        for group, blocks in done.stored:
            self.pools[group].cached[blocks] = True
            self.given += len(blocks)
            if self._events is not None:
                self._events.stored(group, blocks)
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
        self._orders.write(slots, group, index, blocks, epochs)


def _span(start: int, stop: int) -> IntArray:
    return np.arange(start, stop, dtype=np.int32)

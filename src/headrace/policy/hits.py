"""What of a prompt is cached, and what of that a request can use: the longest prefix whose blocks the next position can
read back, in whatever tiers they are, to the token where the device has them. And why it ends where it ends.
"""

import msgspec
import numpy as np

from headrace.core.batch import BoolArray, IntArray
from headrace.core.prefix import common_length
from headrace.policy.block_pool import ABSENT
from headrace.policy.cache_report import CacheReport, Miss
from headrace.policy.chain import links
from headrace.policy.radix_cache import Match, RadixCache
from headrace.policy.slots import Slots
from headrace.policy.tiers import ON_DISK, Tiers


class Hit(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A usable prefix. tokens: its length; blocks int32 [groups, n]: its whole blocks, ABSENT where no later position
    sees them or a lower tier has them. lower int32 [groups, n]: what the host has of these (host blocks), ON_DISK, or
    ABSENT; None if all are on the device; names: of the n blocks from first_name on. part int32 [groups]: the blocks
    whose first tokens end it, to be copied, if tokens is not a multiple of the block size. awaits: the slot that
    computes the block after it right now, or -1; awaited: the positions that both begin with, so worth waiting for."""

    tokens: int
    blocks: IntArray
    part: IntArray | None = None
    match: Match | None = None
    lower: IntArray | None = None
    names: tuple[bytes, ...] = ()
    first_name: int = 0
    awaits: int = -1
    awaited: int = 0

    @property
    def on_disk(self) -> bool:
        """Whether only the disk has some of it."""
        return self.lower is not None and bool((self.lower == ON_DISK).any())


class Hits:
    """windows: one per KV group. Reads the tree and the books of the tiers; changes neither."""

    def __init__(
        self, cache: RadixCache, block_size: int, windows: tuple[int | None, ...], tiers: Tiers | None
    ) -> None:
        self._cache = cache
        self._size = block_size
        self._windows = windows
        self._windowed = [g for g, window in enumerate(windows) if window is not None]
        self._tiers = tiers
        self.none: IntArray = np.empty((len(windows), 0), np.int32)

    def first_visible(self, group: int, position: int) -> int:
        """Index of the first block that a token at this position still sees in this group."""
        window = self._windows[group]
        return 0 if window is None else max(0, position - window + 1) // self._size

    def of(self, match: Match, salt: str, *, disk: bool = True) -> Hit:
        """What can be used of a match. disk: whether what only the disk has counts."""
        parts = [node.blocks[:, :count] for node, count in match.path]
        # A copy: the tree's own arrays change as blocks are evicted.
        blocks = np.concatenate(parts, axis=1) if parts else self.none
        hit = self._on_device(match, blocks)
        if self._tiers is None or hit.tokens // self._size >= len(match.data) // (4 * self._size):
            return hit
        lower = self._with_lower(match, salt, blocks, hit, disk)
        return lower if lower.tokens > hit.tokens else hit

    def _on_device(self, match: Match, blocks: IntArray) -> Hit:
        lacking = blocks == ABSENT
        if match.tail is not None:
            part = match.tail.blocks[:, match.tail_index].copy()
            tokens = match.blocks * self._size + match.tail_tokens
            if int(part.min()) != ABSENT and self._readable(lacking, match.blocks, tokens):
                return Hit(tokens, blocks, part, match)
        length = self._usable(lacking)
        return Hit(length * self._size, blocks[:, :length], None, match)

    def _with_lower(self, match: Match, salt: str, blocks: IntArray, hit: Hit, disk: bool) -> Hit:
        """The same with what lower tiers have, in whole blocks."""
        tiers = self._tiers
        assert tiers is not None
        start = hit.tokens // self._size
        start = min((self.first_visible(group, start * self._size) for group in self._windowed), default=start)
        names = self._cache.names_of(match)
        before = names[start - 1] if start else self._cache.namespace(salt)
        names = names[start:]
        width, groups = 4 * self._size, range(len(self._windows))
        lower: list[list[int]] = []
        for at in range(start * width, len(match.data) - width + 1, width):
            index = at // width - start
            if index == len(names):
                names += links(before, match.data[at : at + width], width)
            before = names[index]
            found = [tiers.find(before, group) for group in groups]
            if not disk:
                found = [ABSENT if block == ON_DISK else block for block in found]
            known = start + index < blocks.shape[1]
            if not known and all(block == ABSENT for block in found):
                break
            lower.append(found)
        whole = start + len(lower)
        if whole <= hit.tokens // self._size:
            return hit
        below = np.full((len(self._windows), whole), ABSENT, np.int32)
        below[:, start:] = np.array(lower, np.int32).T
        above = np.full_like(below, ABSENT)
        above[:, : blocks.shape[1]] = blocks[:, :whole]
        below[above != ABSENT] = ABSENT
        length = self._usable((above == ABSENT) & (below == ABSENT))
        return Hit(
            length * self._size, above[:, :length], None, match, below[:, :length], tuple(names), first_name=start
        )

    def _usable(self, lacking: BoolArray) -> int:
        """Most whole blocks from the start that can be read back; lacking bool [groups, n]."""
        length: int = lacking.shape[1]
        if not np.count_nonzero(lacking):
            return length
        for group, window in enumerate(self._windows):
            gaps = np.flatnonzero(lacking[group, :length])
            if window is None and len(gaps):
                length = int(gaps[0])
        while length and not self._readable(lacking, length, length * self._size):
            length -= 1
        return length

    def _readable(self, lacking: BoolArray, length: int, position: int) -> bool:
        """Whether a token at this position finds all it sees in the first `length` blocks."""
        return not any(
            lacking[group, self.first_visible(group, position) : length].any() for group in range(len(self._windows))
        )

    def ahead(self, tips: set[int], tokens: IntArray, blocks: int, running: Slots) -> tuple[int, int]:
        """Which of the running requests that have come as far as tokens' first `blocks` blocks knows most of what
        comes next, and how many blocks it knows."""
        start = blocks * self._size
        best, most = -1, 0
        if len(tokens) - start < self._size:
            return best, most
        here = np.fromiter(tips, np.intp, len(tips))
        # What is on its way here from elsewhere has rows beyond the slots (exchange.py).
        here = here[here < len(running.sequences)]
        if not len(here):
            return best, most
        alike = running.tokens[here, start] == tokens[start]
        for slot in here[alike].tolist():
            same = common_length(running.tokens[slot, start : running.num_named(slot)], tokens[start:])
            known = (start + same) // self._size
            if known > most:
                best, most = slot, known
        return best, most

    def report(self, salt: str, tokens: IntArray, most: int, hit: Hit) -> CacheReport:
        """Why a hit is what it is, for a request of which at most `most` tokens may come from the cache."""
        at, match = hit.tokens, hit.match
        if match is None:
            return CacheReport()
        host = disk = 0
        if hit.lower is not None and self._tiers is not None:
            read = np.zeros(hit.lower.shape[1], np.bool_)
            for group, index in np.argwhere(hit.lower != ABSENT).tolist():
                read[index] |= self._tiers.was_read(group, int(hit.lower[group, index]))
            disk = self._size * int(read.sum())
            host = self._size * int((hit.lower != ABSENT).any(axis=0).sum()) - disk
        found = CacheReport(device=at - host - disk, host=host, disk=disk, at=at)
        if at >= most:
            return found.because(Miss.NOTHING if most >= len(tokens) - 1 else Miss.SCORED)
        if match.blocks * self._size + match.tail_tokens > at:
            lost = next((node.lost for node, _ in reversed(match.path) if node.lost is not None), (None, None))
            return found.because(Miss.EVICTED, evicted_at=lost[0], evicted_for=lost[1])
        others = self._cache.next_tokens(match)
        if others:
            return found.because(Miss.DIVERGED, token=int(tokens[at]), others=others)
        if at == 0 and self._cache.known_elsewhere(salt, tokens[: self._size].tobytes()):
            return found.because(Miss.NAMESPACE)
        return found.because(Miss.NEW)

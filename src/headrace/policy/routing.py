"""Which replica gets a request. Routers are pure: they see the fleet's loads, what a prompt is made of, and random
draws as arguments. The simulator and a real router use the same ones.

What replicas have cached is followed by PrefixIndex, either exactly, by the events of their caches, or by Assumed: a
bounded guess made of what was sent where.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.policy.block_events import BlockEvent, BlockRemoved, BlockStored
from headrace.policy.replica import Loads, Numbers, Speed

TYPICAL_ANSWER = 256
"""Tokens of an answer, where nobody knows how long it will be."""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A request that is to be placed. tokens: of its prompt. names: of its prompt's whole blocks, each of which stands
    for all tokens up to its end (chain.py); draws: two numbers from 0 to below 1."""

    tokens: int
    names: Sequence[Hashable] = ()
    draws: tuple[float, float] = (0.0, 0.0)


class Router(Protocol):
    def route(self, ask: Ask, loads: Loads) -> int:
        """The replica that gets this request, one of those that are up. At least one is."""
        ...

    def forget(self, replica: int) -> None:
        """What this replica had is gone. Most routers know of nothing there but its load."""
        return


class RoundRobin(Router):
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def route(self, ask: Ask, loads: Loads) -> int:
        up = np.flatnonzero(loads.up)
        chosen = int(up[np.searchsorted(up, self._next % len(loads)) % len(up)])
        self._next = chosen + 1
        return chosen


class LeastLoaded(Router):
    """The one with fewest requests; among equals the one with fewest tokens to compute, then the first."""

    def route(self, ask: Ask, loads: Loads) -> int:
        requests = np.where(loads.up, loads.requests, np.inf)
        fewest = np.flatnonzero(requests == requests.min())
        return int(fewest[loads.tokens[fewest].argmin()])


class TwoChoices(Router):
    """The less loaded of two drawn at random: nearly as even as the least loaded, and no herd runs to one replica when
    reports are late (Mitzenmacher, The power of two choices, 2001)."""

    def route(self, ask: Ask, loads: Loads) -> int:
        up = np.flatnonzero(loads.up).tolist()
        count = len(up)
        one = int(ask.draws[0] * count)
        other = (one + 1 + int(ask.draws[1] * (count - 1))) % count if count > 1 else one
        return min(up[one], up[other], key=lambda i: (loads.waiting[i] + loads.running[i], loads.tokens[i], i))


class LongestPrefix(Router):
    """The one that is predicted to send the first token soonest: cached tokens need not be computed, but the most of
    them are no use at the end of a long queue. What an answer of `answer` tokens takes longer beside those that run
    there counts too, or else all that begin alike would crowd where the first of them went. assumed: if nobody tells
    what replicas have cached, what to assume."""

    def __init__(
        self,
        index: PrefixIndex,
        speed: Speed,
        block_size: int,
        assumed: Assumed | None = None,
        *,
        answer: int = TYPICAL_ANSWER,
    ) -> None:
        self._index = index
        self._speed = speed
        self._block_size = block_size
        self._assumed = assumed
        self._answer = answer

    def route(self, ask: Ask, loads: Loads) -> int:
        cached = np.minimum(self._index.depths(ask.names) * self._block_size, ask.tokens - 1)
        seconds = self._speed.first_token_s(loads, ask.tokens, cached) + self._speed.crowding_s(loads, self._answer)
        chosen = int(np.where(loads.up, seconds, np.inf).argmin())
        if self._assumed is not None:
            self._assumed.sent(chosen, ask.names)
        return chosen

    def forget(self, replica: int) -> None:
        """What this replica had cached is gone."""
        self._index.cleared(replica)
        if self._assumed is not None:
            self._assumed.forget(replica)


class PrefixIndex:
    """Which replicas have which block, as one integer for each block with a bit for each replica: a step along a prompt
    is one AND, however many replicas there are."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._bytes = -(-replicas // 8)
        self._holders: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """Different blocks that some replica has."""
        return len(self._holders)

    def stored(self, replica: int, names: Iterable[Hashable]) -> None:
        """A replica has these blocks now."""
        holders, bit = self._holders, 1 << replica
        for name in names:
            holders[name] = holders.get(name, 0) | bit

    def removed(self, replica: int, names: Iterable[Hashable]) -> None:
        """A replica has these blocks no longer."""
        holders, others = self._holders, ~(1 << replica)
        for name in names:
            left = holders.get(name, 0) & others
            if left:
                holders[name] = left
            else:
                holders.pop(name, None)

    def cleared(self, replica: int) -> None:
        """A replica has nothing."""
        self.removed(replica, [name for name, held in self._holders.items() if held >> replica & 1])

    def follow(self, replica: int, events: Iterable[BlockEvent]) -> None:
        """What happened in a replica's cache, in order; prompts must be named as its blocks are."""
        for event in events:
            if isinstance(event, BlockStored):
                self.stored(replica, event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.removed(replica, event.block_hashes)
            else:
                self.cleared(replica)

    def depths(self, names: Sequence[Hashable]) -> Numbers:
        """How many blocks of a prompt each replica has, from the first on without a gap: float64 [replicas]."""
        depths: Numbers = np.zeros(self._replicas)
        holders, held, begun = self._holders, 0, 0
        for depth, name in enumerate(names):
            now = holders.get(name, 0) & held if depth else holders.get(name, 0)
            if now != held:
                if depth:
                    depths[self._members(held & ~now)] = depth
                held = now
            if not now:
                return depths
            begun = depth + 1
        if held:
            depths[self._members(held)] = begun
        return depths

    def _members(self, mask: int) -> npt.NDArray[np.bool_]:
        """bool [replicas]."""
        data = np.frombuffer(mask.to_bytes(self._bytes, "little"), np.uint8)
        return np.unpackbits(data, count=self._replicas, bitorder="little").view(np.bool_)


class Assumed:
    """Keeps a PrefixIndex where nobody reports: a replica has what was sent to it last, as many blocks as its cache
    holds (blocks[i]), the least recently sent gone first. Answers, and blocks that running requests keep from others,
    are not seen, so this errs toward more than there is."""

    def __init__(self, index: PrefixIndex, blocks: Sequence[int]) -> None:
        self._index = index
        self._blocks = blocks
        self._recent: dict[int, OrderedDict[Hashable, None]] = {}

    def forget(self, replica: int) -> None:
        """Nothing is assumed of this replica any more."""
        self._recent.pop(replica, None)

    def sent(self, replica: int, names: Sequence[Hashable]) -> None:
        """This prompt was sent there. Of one prompt's blocks the last are the first to go."""
        recent = self._recent.setdefault(replica, OrderedDict())
        new = [name for name in names if name not in recent]
        recent.update(dict.fromkeys(new))
        for name in reversed(names):
            recent.move_to_end(name)
        self._index.stored(replica, new)
        over = len(recent) - self._blocks[replica]
        if over > 0:
            self._index.removed(replica, [recent.popitem(last=False)[0] for _ in range(over)])

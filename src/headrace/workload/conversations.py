"""Loads of conversations: each begins with contents that others share too, and goes on turn by turn; a turn's prompt is
the one before it, the answer to that, and new text. They come openly, at a rate whatever happens to them, or in closed
loops, where so many users wait for their answers. The same seed makes the same load.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, count
from random import Random

from headrace.core.errors import ConfigError
from headrace.workload.arrivals import Arrivals
from headrace.workload.demand import ANSWER, Demand, Part
from headrace.workload.lengths import Lengths, Seconds

_FIRST_OWN = 2**32
"""Names of contents that no two conversations share begin here; below it are those of pools."""
_SPANS = 6
"""Of conversations that began more than so many mean durations ago, few still go on."""

Opening = Callable[[Random], tuple[Part, ...]]
"""What a conversation begins with, out of what conversations share."""


class Pool:
    """Contents that conversations share (system prompts, documents, tenants), the k-th of them used as often as k to
    the power of -skew says (Zipf's law). first: name of the first."""

    def __init__(self, size: int, skew: float, lengths: Lengths, *, first: int, seed: int = 0) -> None:
        if size < 1 or skew < 0:
            raise ConfigError(f"a pool has at least 1 content and a skew of at least 0, got {size} and {skew}")
        draw = Random(f"pool {seed} {first}")
        self.parts: list[Part] = [(first + k, lengths(draw)) for k in range(size)]
        self.shares = list(accumulate(k**-skew for k in range(1, size + 1)))

    def pick(self, draw: Random) -> Part:
        return self.parts[bisect(self.shares, draw.random() * self.shares[-1], hi=len(self.parts) - 1)]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a conversation is made of. text: new tokens of each turn; think_s: from an answer's end to the next turn."""

    opening: Opening
    text: Lengths
    answer: Lengths
    turns: Lengths
    think_s: Seconds

    def mean_turns(self, seed: int) -> float:
        return sum(self.turns(draw) for draw in [Random(seed)] for _ in range(10_000)) / 10_000

    def mean_think_s(self, seed: int) -> float:
        return sum(self.think_s(draw) for draw in [Random(seed)] for _ in range(10_000)) / 10_000


def open_load(
    kind: Kind,
    arrivals: Callable[[float], Arrivals],
    *,
    requests: int,
    rate: float,
    seed: int,
    tenants: Sequence[str] = (),
) -> list[Demand]:
    """So many requests, at this many a second by and large, in about the order in which they come. arrivals: of a rate;
    conversations come by it, at the rate that makes their requests this many a second. Some are under way at 0 s: what
    of them came before then is part of their prompts."""
    _check(requests)
    turns = kind.mean_turns(seed)
    span = (turns - 1) * kind.mean_think_s(seed)
    draw, own = Random(f"load {seed}"), count(_FIRST_OWN)
    begins = arrivals(rate / turns)(draw, -_SPANS * span)
    # Each conversation is drawn from a generator of its own, so that none depends on how many requests are asked for.
    talks = (_Talk(kind, Random(f"talk {seed} {k}"), own, at, _pick(tenants, seed, k)) for k, at in enumerate(begins))
    return _by_time(talks, requests)


def closed_loop(kind: Kind, *, users: int, requests: int, seed: int, tenants: Sequence[str] = ()) -> list[Demand]:
    """So many users, each with at most one request under way: a user asks, waits for the answer, thinks, asks again,
    and after a conversation begins another."""
    _check(requests)
    if users < 1:
        raise ConfigError(f"users must be at least 1, got {users}", field="users")
    own = count(_FIRST_OWN)
    demands: list[Demand] = []
    loops = [_user(kind, Random(f"user {seed} {k}"), own, _pick(tenants, seed, k)) for k in range(min(users, requests))]
    last: list[int | None] = [None] * len(loops)
    while True:
        for k, loop in enumerate(loops):
            if len(demands) == requests:
                return demands
            think, prompt, answer, tenant = next(loop)
            demands.append(Demand(think, prompt, answer, follows=last[k], tenant=tenant))
            last[k] = len(demands) - 1


def _user(
    kind: Kind, draw: Random, own: Iterator[int], tenant: str
) -> Iterator[tuple[float, tuple[Part, ...], int, str]]:
    while True:
        prompt = kind.opening(draw)
        for _ in range(kind.turns(draw)):
            prompt += ((next(own), kind.text(draw)),)
            answer = kind.answer(draw)
            yield kind.think_s(draw), prompt, answer, tenant
            prompt += ((ANSWER, answer),)


class _Talk:
    """One conversation, as if answers took no time: times of its turns, and what they ask. requests: places of those
    that came at 0 s or later in the load."""

    def __init__(self, kind: Kind, draw: Random, own: Iterator[int], at: float, tenant: str) -> None:
        self.tenant = tenant
        self.prompt = kind.opening(draw)
        self.own, self.draw, self.kind = own, draw, kind
        self.thinks = [0.0, *(kind.think_s(draw) for _ in range(kind.turns(draw) - 1))]
        self.times = list(accumulate(self.thinks[1:], initial=at))
        self.turn = 0
        self.last: int | None = None

    def next_demand(self, place: int) -> Demand | None:
        """What it asks next, as the load's request at this place; None for what was asked before 0 s."""
        at, think = self.times[self.turn], self.thinks[self.turn]
        self.turn += 1
        prompt = (*self.prompt, (next(self.own), self.kind.text(self.draw)))
        answer = self.kind.answer(self.draw)
        if at < 0:
            # An answer of before the load is a text like others.
            self.prompt = (*prompt, (next(self.own), answer))
            return None
        self.prompt = (*prompt, (ANSWER, answer))
        follows, self.last = self.last, place
        return Demand(at if follows is None else think, prompt, answer, follows=follows, tenant=self.tenant)


def _by_time(talks: Iterator[_Talk], requests: int) -> list[Demand]:
    demands: list[Demand] = []
    under_way: list[tuple[float, int, _Talk]] = []
    for number, talk in enumerate(talks):
        heappush(under_way, (talk.times[0], number, talk))
        # Later conversations begin no earlier than this one.
        while under_way and under_way[0][0] <= talk.times[0]:
            _, which, first = heappop(under_way)
            if (demand := first.next_demand(len(demands))) is not None:
                demands.append(demand)
                if len(demands) == requests:
                    return demands
            if first.turn < len(first.times):
                heappush(under_way, (first.times[first.turn], which, first))
    return demands


def _pick(tenants: Sequence[str], seed: int, number: int) -> str:
    return Random(f"tenant {seed} {number}").choice(tenants) if tenants else ""


def _check(requests: int) -> None:
    if requests < 1:
        raise ConfigError(f"requests must be at least 1, got {requests}", field="requests")

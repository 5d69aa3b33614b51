"""Links between replicas, and what travels on them in virtual time. Each link has a name and a bandwidth in each
direction, and shares it among the streams that use it at the moment, max-min fair: nobody gets less so that somebody
with more may have it. Rates change when a stream begins, runs dry or is fed again, of those that share links with it.

The links of replicas: nvlinkR to the others of its node, nicR to other nodes, uplinkK from rack K to other racks;
`.out` and `.in` are a link's directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Link:
    """One direction. bandwidth: bytes a second, divided by slowness. carried: bytes so far."""

    name: str
    bandwidth: float
    slowness: float = 1.0
    carried: float = 0.0
    streams: dict[Stream, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Stream:
    """What goes one way. latency: seconds from a byte's being sent to its arrival. pending: bytes that are there to be
    sent; closed: no more will come. sent: bytes so far, up to `since`, from when on it has had this rate; dry: when
    nothing is pending at this rate."""

    path: tuple[Link, ...]
    latency: float
    pending: float = 0.0
    sent: float = 0.0
    rate: float = 0.0
    since: float = 0.0
    dry: float = NEVER
    closed: bool = False


class Network:
    """links: both directions of all. Time never goes back."""

    def __init__(self, links: Iterable[Link] = ()) -> None:
        self.links = {link.name: link for link in links}
        self._active: dict[Stream, None] = {}

    @property
    def next(self) -> float:
        """When the next stream runs dry, if nothing changes."""
        return min((stream.dry for stream in self._active), default=NEVER)

    def advance(self, now: float) -> list[Stream]:
        """It is `now`, no later than next. The streams that have run dry and are closed, in the order of opening."""
        dry = [stream for stream in self._active if stream.dry <= now]
        for stream in dry:
            self._settle(stream, now)
            stream.sent += stream.pending
            for link in stream.path:
                link.carried += stream.pending
            stream.pending = 0.0
            self._stop(stream)
        self._share([link for stream in dry for link in stream.path], now)
        return [stream for stream in dry if stream.closed]

    def feed(self, stream: Stream, size: float, now: float, *, last: bool = False) -> bool:
        """So many bytes more are there to be sent; last: no more will come. True if all has been sent by then."""
        stream.closed = last
        if size > 0:
            if stream in self._active:
                self._settle(stream, now)
            stream.pending += size
            stream.since = now
            self._active[stream] = None
            for link in stream.path:
                link.streams[stream] = None
            self._share(stream.path, now)
        return last and stream not in self._active

    def cancel(self, stream: Stream, now: float) -> None:
        """What is not sent yet never will be."""
        if stream in self._active:
            self._settle(stream, now)
            self._stop(stream)
            self._share(stream.path, now)

    def slow(self, factors: Sequence[tuple[str, float]], now: float) -> None:
        """From now on, links of these names or kinds have so many times less bandwidth each, and all others have their
        own."""
        for link in self.links.values():
            link.slowness = prod(factor for name, factor in factors if name in _names(link.name))
        self._share(list(self.links.values()), now)

    def named(self, name: str) -> list[Link]:
        """Links of that kind, name, or direction of a name."""
        return [link for link in self.links.values() if name in _names(link.name)]

    @property
    def names(self) -> list[str]:
        """By which named() finds any: kinds, then names, then directions."""
        return list(dict.fromkeys(name for part in zip(*map(_names, self.links), strict=True) for name in part))

    def _stop(self, stream: Stream) -> None:
        del self._active[stream]
        stream.rate, stream.dry = 0.0, NEVER
        for link in stream.path:
            del link.streams[stream]

    def _settle(self, stream: Stream, now: float) -> None:
        size = min(stream.rate * (now - stream.since), stream.pending)
        stream.pending -= size
        stream.sent += size
        stream.since = now
        for link in stream.path:
            link.carried += size

    def _share(self, changed: Sequence[Link], now: float) -> None:
        """Rates of all streams that share links with these, directly or by others: the link that has least for each of
        its streams decides theirs, then the next of what is left."""
        left: dict[Link, float] = {}
        waiting: dict[Link, int] = {}
        rates: dict[Stream, float] = {}
        reached = list(changed)
        while reached:
            link = reached.pop()
            if link in left or not link.streams:
                continue
            left[link], waiting[link] = link.bandwidth / link.slowness, len(link.streams)
            for stream in link.streams:
                if stream not in rates:
                    rates[stream] = 0.0
                    reached += stream.path
        while waiting:
            tightest = min(waiting, key=lambda link: left[link] / waiting[link])
            rate = left[tightest] / waiting[tightest]
            for stream in tightest.streams:
                if rates[stream]:
                    continue
                rates[stream] = rate
                for link in stream.path:
                    left[link] = max(left[link] - rate, 0.0)
                    waiting[link] -= 1
                    if not waiting[link]:
                        del waiting[link]
        for stream, rate in rates.items():
            if rate != stream.rate or stream.dry == NEVER or stream.since == now:
                self._settle(stream, now)
                stream.rate, stream.dry = rate, now + stream.pending / rate


def _names(link: str) -> tuple[str, str, str]:
    """Its kind, its name in both directions, and its own."""
    plain = link.partition(".")[0]
    return plain.rstrip("0123456789"), plain, link

"""Transfers: how requests go from the pool that computes prompts to the one that answers. The prefill replica takes a
request for one token; meanwhile room is made on a decode replica, and keys and values travel as they are computed; when
all are there the decode replica goes on with the request. Blocks are held on both sides until then: a decode pool
without room holds up the prefill pool. Who waits for room is served first come first served.
"""

import heapq
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from headrace.core.request import OutputDelta, Request
from headrace.policy.disaggregation import Disaggregation
from headrace.policy.replica import Loads, Speed
from headrace.policy.routing import Ask, Router
from headrace.simulate.ledger import Entry
from headrace.simulate.network import NEVER, Stream
from headrace.simulate.pools import Pools
from headrace.simulate.replica import Replica
from headrace.simulate.result import Percentiles, TransferSummary


class Host(Protocol):
    """What a simulation does for its transfers. now: seconds."""

    @property
    def now(self) -> float: ...

    def replica(self, index: int) -> Replica:
        """The one with this number, made if it was not needed before."""

    def entry(self, index: int) -> Entry:
        """What became of a request so far."""

    def request(self, index: int, tokens: int | None = None) -> Request:
        """To generate so many tokens, those that it has included. None: all."""

    def heed(self, index: int, replica: Replica) -> None:
        """A replica's load or its waking has changed."""

    def wake_transfers(self, at: float) -> None:
        """Call due() then, or a little later as well."""


@dataclass(slots=True, eq=False)
class _Handover:
    """A request on its way from source to target. done: positions that the source has computed, of `total`; ready: all,
    since when. here: those that the target had. fed: bytes that were given to the stream since it was opened."""

    index: int
    source: int
    request: Request
    ask: Ask
    total: int
    done: int = 0
    ready: bool = False
    since: float = 0.0
    target: int = -1
    stream: Stream | None = None
    opened: float = 0.0
    here: int = 0
    fed: float = 0.0
    lands: float = NEVER


class Transfers:
    """router: of the prefill pool. speed: of the decode pool's replicas. loads: of all replicas."""

    def __init__(self, pools: Pools, router: Router, speed: Speed, loads: Loads, host: Host) -> None:
        self._pools, self._router, self._host = pools, router, host
        self._prompts = pools.prefill.replicas
        self._prefill, self._decode = loads.part(0, self._prompts), loads.part(self._prompts, len(loads))
        blocks = min(pools.decode.capacity().num_blocks)
        self._policy = Disaggregation(
            pools.decode.replicas, blocks, pools.block_size, speed, min_tokens=pools.min_tokens
        )
        self._size = pools.traffic().size
        self._wiring = pools.wiring()
        self.network = self._wiring.network
        self._under_way: dict[int, _Handover] = {}
        self._computed: list[_Handover] = []
        self._line: deque[_Handover] = deque()
        self._matching = False
        self._streams: dict[Stream, _Handover] = {}
        self._landing: list[tuple[float, int]] = []
        self._called = NEVER  # the next time at which due() was asked for
        self._bytes = self._saved = 0.0
        self._took: list[float] = []
        self._waited: list[float] = []

    # Where requests go

    def route(self, ask: Ask) -> tuple[int, bool]:
        """The replica that gets a request next, and whether it stays there. At least one of all is up."""
        stays = self._policy.stays(ask, self._decode, always=not self._prefill.up.any())
        if stays is None:
            return self._router.route(ask, self._prefill), False
        self._policy.sent(stays, ask.names)
        return self._prompts + stays, True

    def take_for_cached(self, names: Sequence[Hashable]) -> None:
        """Assume that all of the decode pool has blocks of these names."""
        for replica in range(len(self._decode)):
            self._policy.sent(replica, names)

    def check(self, request: Request) -> None:
        """Raises RequestError if the decode pool can never run it."""
        self._host.replica(self._prompts).engine.check(request)

    def begin(self, index: int, source: int, request: Request, ask: Ask) -> None:
        """A prefill replica has taken this request, to compute its tokens for another."""
        total = len(request.prompt_ids) + len(request.output_ids)
        self._under_way[index] = _Handover(index, source, request, ask, total)

    def computed(self, at: float, deltas: list[OutputDelta]) -> None:
        """A prefill replica's steps have brought these; a request that goes on elsewhere has not ended."""
        for delta in deltas:
            one = self._under_way.get(int(delta.request_id))
            if one is None or delta.finish_reason is None:
                continue
            delta.finish_reason = None
            entry = self._host.entry(one.index)
            if entry.prefilled < 0:
                entry.cached = delta.cached_tokens or 0
            entry.prefilled = one.source
            one.ready, one.since = True, at
            self._computed.append(one)
            self._host.replica(one.source).engine.keep(one.request)

    # What happens

    def heed(self, index: int, replica: Replica) -> None:
        """A replica has moved."""
        if index < self._prompts:
            self._see_progress(index, replica)
        self._match()
        self._schedule()

    def due(self) -> None:
        """It is a time that was asked for, or who waits may have somewhere to go."""
        now = self._host.now
        if self._called <= now:
            self._called = NEVER
        for stream in self.network.advance(now):
            self._land(self._streams[stream])
        while self._landing and self._landing[0][0] <= now:
            at, index = heapq.heappop(self._landing)
            one = self._under_way.get(index)
            if one is not None and one.lands == at:
                self._complete(one)
        self._match()
        self._schedule()

    def lost(self, index: int) -> None:
        """A replica is no more. What it was computing or sending is for the simulation to replay; what was on its way
        to it is sent elsewhere."""
        now = self._host.now
        if index >= self._prompts:
            self._policy.forget(index - self._prompts)
        else:
            self._router.forget(index)
        self._computed = [one for one in self._computed if one.source != index]
        for one in list(self._under_way.values()):
            if index == one.source:
                target = one.target
                self._unbind(one)
                del self._under_way[one.index]
                if one in self._line:
                    self._line.remove(one)
                if target >= 0:
                    replica = self._host.replica(target)
                    replica.let_go(one.request.request_id, now)
                    self._host.heed(target, replica)
            elif index == one.target:
                self._unbind(one)
                self._host.entry(one.index).replays += 1
                self._line.append(one)
        self.due()

    def slow(self, factors: Sequence[tuple[str, float]]) -> None:
        """Links of these names or kinds have so many times less bandwidth from now on, as Network.slow does."""
        self.network.slow(factors, self._host.now)
        self._schedule()

    def _see_progress(self, source: int, replica: Replica) -> None:
        done = dict.fromkeys(self._computed, 0)
        self._computed = []
        if self._pools.incremental:
            for request_id, count in replica.engine.progress().items():
                one = self._under_way.get(int(request_id))
                if one is not None and one.source == source and count > one.done:
                    done[one] = count
        for one, count in done.items():
            begins, one.done = not one.done, count or one.total
            if one.stream is not None:
                self._feed(one)
            elif begins:
                self._line.append(one)

    def _match(self) -> None:
        """Find a target for those who have waited longest, while there is room."""
        if self._matching:
            return
        self._matching = True
        now = self._host.now
        while self._line:
            one = self._line[0]
            token_s, latency_s = self._way(one)
            chosen = self._policy.receiver(one.ask, self._decode, token_s, latency_s)
            if chosen is None:
                break
            target = self._prompts + chosen
            replica = self._host.replica(target)
            here = replica.expect(one.request, now)
            self._host.heed(target, replica)
            if here is None:
                break
            self._line.popleft()
            self._policy.sent(chosen, one.ask.names)
            one.target, one.here, one.opened = target, here, now
            one.stream = Stream(*self._wiring.path(one.source, target))
            self._streams[one.stream] = one
            self._feed(one)
        self._matching = False

    def _way(self, one: _Handover) -> tuple[Any, Any]:
        """Seconds for each token and of latency, to every decode replica."""
        each = self._size(one.total, 0, one.total) / one.total
        reach = [self._wiring.reach(one.source, self._prompts + i) for i in range(len(self._decode))]
        bandwidth, latency = np.array(reach).T
        return each / bandwidth, latency

    def _feed(self, one: _Handover) -> None:
        assert one.stream is not None
        size = self._size(one.done, one.here, one.total) - one.fed
        one.fed += size
        if self.network.feed(one.stream, size, self._host.now, last=one.ready):
            self._land(one)

    def _land(self, one: _Handover) -> None:
        assert one.stream is not None
        one.lands = self._host.now + (one.stream.latency if one.fed else 0.0)
        heapq.heappush(self._landing, (one.lands, one.index))

    def _complete(self, one: _Handover) -> None:
        now, entry, request_id = self._host.now, self._host.entry(one.index), one.request.request_id
        self._bytes += one.fed
        self._saved += self._size(one.total, 0, one.total) - one.fed
        self._took.append(now - one.opened)
        self._waited.append(now - one.since)
        source, target = one.source, one.target
        self._unbind(one)
        del self._under_way[one.index]
        entry.transfer += now - one.since
        entry.replica = target
        sender, receiver = self._host.replica(source), self._host.replica(target)
        sender.let_go(request_id, now)
        self._host.heed(source, sender)
        receiver.receive(self._host.request(one.index), now)
        self._host.heed(target, receiver)

    def _unbind(self, one: _Handover) -> None:
        if one.stream is not None:
            self.network.cancel(one.stream, self._host.now)
            del self._streams[one.stream]
        one.stream, one.target, one.fed, one.lands = None, -1, 0.0, NEVER

    def _schedule(self) -> None:
        at = min(self.network.next, self._landing[0][0] if self._landing else NEVER)
        if at < self._called:
            self._called = at
            self._host.wake_transfers(at)

    def summary(self, duration: float) -> TransferSummary:
        """Of a run of so many seconds."""
        share = {
            name: round(link.carried / (link.bandwidth * duration), 6) if duration else 0.0
            for name, link in self.network.links.items()
            if link.carried
        }
        took, waited = (Percentiles.of(1e3 * np.array(seconds)) for seconds in (self._took, self._waited))
        busiest = max(share, key=lambda name: share[name], default="")
        sent, saved = int(self._bytes), int(self._saved)
        return TransferSummary(len(self._took), sent, saved, took, waited, busiest, share.get(busiest, 0.0), share)

"""What became of each request: how long it waited and for what, what the cache had of it, who took its place and when
it came back. All that live and a bounded number of those that ended. It follows the scheduler's moves and decides
nothing.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace.core.request import Request, RequestState
from headrace.policy.backlog import Waiting
from headrace.policy.holdup import HoldupClock
from headrace.policy.moves import Move
from headrace.policy.records import PreemptionRecord, RequestRecord

_MOST_PREEMPTIONS = 32
_MOST_FOUND = 16
_CHOICE = re.compile(r"(-\d+){0,2}")


@dataclass(slots=True)
class _Entry:
    """number: order of arrival. waits_since, read: while it waits, since when, and the clocks' state then."""

    record: RequestRecord
    number: int
    arrived: float
    waits_since: float | None
    read: tuple[float, ...]


class RequestLog:
    """most_ended: of those that ended, how many are remembered. preemptions: by kind (swap, recompute) and
    cause (blocks, priority)."""

    def __init__(self, most_ended: int) -> None:
        self.clock = HoldupClock()
        self._live: dict[str, _Entry] = {}
        self._ended: OrderedDict[str, _Entry] = OrderedDict()
        self._most_ended = most_ended
        self._arrivals = 0
        self.preemptions: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._live) + len(self._ended)

    @property
    def ended(self) -> list[RequestRecord]:
        """Those that are remembered, in the order in which they ended."""
        return [entry.record for entry in self._ended.values()]

    def take(self, request: Request, now: float) -> None:
        """A request that was accepted and waits."""
        self._arrivals += 1
        record = RequestRecord(
            request_id=request.request_id,
            state=RequestState.WAITING.value,
            tenant=request.tenant,
            priority=request.priority,
            deadline_s=request.deadline,
            prompt_tokens=len(request.prompt_ids),
            max_tokens=request.max_tokens,
            replayed_tokens=len(request.output_ids),
        )
        self._live[request.request_id] = _Entry(record, self._arrivals, now, now, self.clock.read(now))

    def follow(self, moves: Iterable[Move], now: float) -> tuple[list[float], list[float]]:
        """Moves of requests that were taken, in order. Returns how long those waited that began to run now, and how
        long those ran that ended."""
        begun: list[float] = []
        ended: list[float] = []
        for move in moves:
            entry = self._live.get(move.sequence.request_id)
            if entry is None:
                continue
            record, after = entry.record, now - entry.arrived
            record.state = move.state.value
            if move.state is RequestState.RUNNING:
                self._stop_waiting(entry, now)
                if record.begun_after_s is None:
                    record.begun_after_s = after
                    record.cached_tokens = max(0, move.sequence.cached_tokens)
                    record.cache = move.sequence.cache
                    record.prefix_of = move.sequence.awaited
                    begun.append(after)
                elif record.preemptions:
                    record.preemptions[-1].resumed_after_s = after
            elif move.state is RequestState.PREEMPTED:
                entry.waits_since, entry.read = now, self.clock.read(now)
                record.num_preemptions += 1
                kind, by = "swap" if move.swapped else "recompute", None if move.by is None else move.by.request_id
                self.preemptions[kind, "blocks" if by is None else "priority"] += 1
                record.preemptions = [*record.preemptions[1 - _MOST_PREEMPTIONS :], PreemptionRecord(after, kind, by)]
            elif move.state is RequestState.FINISHED:
                self._stop_waiting(entry, now)
                record.ended_after_s = after
                record.finish_reason = None if move.reason is None else move.reason.value
                record.generated_tokens = len(move.sequence.tokens) - record.prompt_tokens
                self._end(entry)
                if record.begun_after_s is not None:
                    ended.append(after - record.begun_after_s)
        return begun, ended

    def find(self, name: str, now: float) -> list[RequestRecord]:
        """The request of this id, or the choices of the client's request of this id, as they are now."""
        found = [entry for entries in (self._live, self._ended) for entry in entries.values() if _is(entry, name)]
        return [self._shown(entry, now) for entry in found[:_MOST_FOUND]]

    def ahead(self, record: RequestRecord) -> Waiting | None:
        """What waits and goes before this one by priority and arrival, though tenants may yet take turns. None if it
        does not wait."""
        entry, ahead = self._live.get(record.request_id), Waiting()
        if entry is None or entry.waits_since is None:
            return None
        for other in self._live.values():
            theirs = other.record
            if other.waits_since is not None and (theirs.priority, other.number) < (record.priority, entry.number):
                ahead = ahead.plus(Waiting(1, theirs.prompt_tokens, theirs.max_tokens))
        return ahead

    def oldest_wait(self, now: float) -> float:
        """Seconds that the one has waited which came first."""
        waits = (now - entry.waits_since for entry in self._live.values() if entry.waits_since is not None)
        return next(waits, 0.0)

    def _shown(self, entry: _Entry, now: float) -> RequestRecord:
        record = msgspec.structs.replace(entry.record, age_s=now - entry.arrived)
        if entry.waits_since is not None:
            record.waited_s, record.waited_for = self._waited(entry, now)
        if record.cache is not None and record.cache.evicted_at is not None:
            record.evicted_ago_s = now - record.cache.evicted_at
        return record

    def _stop_waiting(self, entry: _Entry, now: float) -> None:
        if entry.waits_since is not None:
            entry.record.waited_s, entry.record.waited_for = self._waited(entry, now)
            entry.waits_since = None

    def _waited(self, entry: _Entry, now: float) -> tuple[float, dict[str, float]]:
        """In all, the time since it began to wait last included."""
        assert entry.waits_since is not None
        record = entry.record
        by_reason = dict(record.waited_for)
        for reason, seconds in self.clock.since(entry.read, now).items():
            by_reason[reason.value] = by_reason.get(reason.value, 0.0) + seconds
        return record.waited_s + now - entry.waits_since, by_reason

    def _end(self, entry: _Entry) -> None:
        request_id = entry.record.request_id
        del self._live[request_id]
        self._ended.pop(request_id, None)
        self._ended[request_id] = entry
        if len(self._ended) > self._most_ended:
            self._ended.popitem(last=False)


def _is(entry: _Entry, name: str) -> bool:
    """Engines' ids are the client's id, then a dash and numbers for each prompt and choice."""
    request_id = entry.record.request_id
    return request_id.startswith(name) and _CHOICE.fullmatch(request_id, len(name)) is not None

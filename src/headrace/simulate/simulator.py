"""The simulator: requests arrive in virtual time, a router places each on a replica, and each replica is a real engine
over a device that answers with times (replica.py). Pop an event, set the time, let it happen; the next event is another
arrival or the replica that wakes next. The same demands, fleet, router and seed give the same result.

    result = simulate(demands, fleet, router="prefix", seed=0, rate_multiplier=2.0, slo=Slo(ttft_ms=1000))
"""

import gc
import heapq
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from headrace.core.errors import ConfigError, RequestError
from headrace.core.request import OutputDelta, Request, SamplingParams
from headrace.policy.replica import Load, Loads
from headrace.policy.routing import Ask, PrefixIndex
from headrace.simulate.executor import ANSWER_TOKEN, TimedExecutor
from headrace.simulate.faults import DIES, LINK, SLOW, Fault
from headrace.simulate.kinds import Kind, Simulated
from headrace.simulate.ledger import Entry, Ledger
from headrace.simulate.news import News, check_events
from headrace.simulate.pools import Pools
from headrace.simulate.prompts import Prompts
from headrace.simulate.replica import NEVER, Replica
from headrace.simulate.result import Result, Slo, Speculation, TransferSummary, summarize
from headrace.simulate.transfers import Transfers
from headrace.simulate.watch import Watch
from headrace.workload.demand import Demand, Part

_WAKE, _ARRIVAL, _FAULT, _RECOVERY, _TRANSFER, _TOLD = 0, 1, 2, 3, 4, 5
STARTUP_S = 60.0
"""Seconds in which a replica that died is there again."""
_PARAMS = SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True)
_NEW_OBJECTS = 200_000
"""How many more there are before garbage is looked for: nearly all live to the end of a run."""
Progress = Callable[[int], object]


def simulate(
    demands: Sequence[Demand],
    fleet: Simulated,
    *,
    router: str = "round-robin",
    seed: int = 0,
    rate_multiplier: float = 1.0,
    slo: Slo | None = None,
    progress: Progress = lambda ended: None,
    watch: Watch | None = None,
    faults: Sequence[Fault] = (),
    startup_s: float = STARTUP_S,
    kv_events_delay_s: float | None = None,
) -> Result:
    """Serve all demands by a fleet. router: one of ROUTERS. rate_multiplier: arrivals come so many times as fast; times
    after another request's end stay. progress is told how many requests more have ended or were refused; watch
    is filled with what a report shows. faults happen; a replica that died is there again startup_s later.
    kv_events_delay_s: how late the prefix router is told what caches store and remove, None: it assumes. Raises
    ConfigError where a setting is out of range or the model does not fit."""
    began = time.perf_counter()
    if not demands:
        raise ConfigError("the workload has no requests")
    if not 0 < rate_multiplier < float("inf"):
        raise ConfigError(f"rate_multiplier must be above 0, got {rate_multiplier}", field="rate_multiplier")
    if not 0 <= startup_s < float("inf"):
        raise ConfigError(f"startup_s must be finite and at least 0, got {startup_s}", field="startup_s")
    if kv_events_delay_s is not None:
        check_events(kv_events_delay_s, fleet, router)
    if rate_multiplier != 1:
        demands = [one if one.follows is not None else replace(one, at=one.at / rate_multiplier) for one in demands]
    run = Simulation(demands, fleet, router, seed, progress, watch, faults, startup_s, kv_events_delay_s)
    with _seldom_collecting():
        run.run()
    return run.result(slo or Slo(), time.perf_counter() - began)


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _NEW_OBJECTS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Simulation:
    """One run, from the first arrival to the last token."""

    def __init__(
        self,
        demands: Sequence[Demand],
        fleet: Simulated,
        router: str,
        seed: int,
        progress: Progress = lambda ended: None,
        watch: Watch | None = None,
        faults: Sequence[Fault] = (),
        startup_s: float = STARTUP_S,
        kv_events_delay_s: float | None = None,
    ) -> None:
        self._demands = demands
        self._faults, self._startup_s = faults, startup_s
        # Faults that slow something and have not ended.
        self._slowing: list[Fault] = []
        # Replicas that are no more, whose work counts; requests that wait until any is there.
        self._gone: list[tuple[int, Replica]] = []
        self._held: list[int] = []
        self._watch = watch
        self._seed = seed
        log = None if watch is None else len(demands)
        kinds = (fleet.prefill, fleet.decode) if isinstance(fleet, Pools) else (fleet,)
        self._news = None if kv_events_delay_s is None else News(kv_events_delay_s)
        self._kinds = [Kind(kind, log, events=self._news is not None) for kind in kinds]
        self._of = [kind for kind in self._kinds for _ in range(kind.replicas)]
        self._capacity = self._kinds[-1].capacity
        self._replicas: list[Replica | None] = [None] * fleet.replicas
        self._loads = Loads(fleet.replicas)
        self._router = self._kinds[0].router(router, answers=len(kinds) == 1)
        self._names = router == "prefix" or len(kinds) > 1
        self._transfers: Transfers | None = None
        if isinstance(fleet, Pools):
            self._kinds[0].guessing = None  # it makes no second token
            self._kinds[1].receives = self._capacity.num_slots
            self._transfers = Transfers(fleet, self._router, self._kinds[1].speed, self._loads, self)
        self._draw = random.Random(seed)
        self._prompts = Prompts()
        self.ledger = Ledger()
        self._progress = progress
        self._followers: dict[int, list[int]] = {}
        # (time, kind, index of a replica or demand): arrivals known from the start, the last first, and a heap of
        # all else. A wake-up that its replica no longer waits for means nothing.
        self._arrivals: list[tuple[float, int, int]] = []
        self._events: list[tuple[float, int, int]] = []
        for index, one in enumerate(demands):
            if one.follows is None:
                self._arrivals.append((one.at, _ARRIVAL, index))
            else:
                self._followers.setdefault(one.follows, []).append(index)
        self._arrivals.sort(reverse=True)
        self._start = self._now = self._arrivals[-1][0] if self._arrivals else 0.0
        for index, fault in enumerate(faults):
            heapq.heappush(self._events, (self._start + fault.at, _FAULT, index))
        # Seconds that requests have spent in the system, for their mean number.
        self._inside, self._spent = 0, 0.0

    def run(self, until: float = NEVER) -> Mapping[int, Entry]:
        """To the end, or to what happens after `until`. What became of each request that came, by its place."""
        events, arrivals, replicas = self._events, self._arrivals, self._replicas
        while events or arrivals:
            known = bool(arrivals) and (not events or arrivals[-1] < events[0])
            if (arrivals[-1] if known else events[0])[0] > until:
                break
            at, kind, index = arrivals.pop() if known else heapq.heappop(events)
            if kind == _ARRIVAL:
                self._move_to(at)
                self._arrive(index)
                continue
            if kind == _TRANSFER:
                assert self._transfers is not None
                self._move_to(at)
                self._transfers.due()
                continue
            if kind != _WAKE:
                # What happens in an empty system, after all has ended, lengthens nothing.
                if self._inside or self._more_to_come():
                    self._move_to(at)
                    if kind == _TOLD:
                        assert self._news is not None
                        self._news.tell(self.index, self._replicas)
                    elif kind == _FAULT:
                        self._fail(index)
                    else:
                        self._recover(self._faults[index])
                continue
            replica = replicas[index]
            if replica is not None and replica.wake == at:
                self._move_to(at)
                replica.woken()
                self._follow(index, replica)
        return self.ledger.entries

    def result(self, slo: Slo, wall: float) -> Result:
        if self._watch is not None:
            self._watch.settle(self.ledger, [one.engine for one in self._every_replica()])
        duration = self._now - self._start
        told = [(0.0, 0) if one is None else (one.busy, one.engine.preemptions) for one in self._replicas]
        for index, one in self._gone:
            busy, preemptions = told[index]
            told[index] = (busy + one.busy, preemptions + one.engine.preemptions)
        in_system = self._spent / duration if duration else 0.0
        found = summarize(self.ledger, told, slo, in_system, duration, wall)
        found = replace(found, transfer=self.transfer)
        if self._kinds[-1].guessing is None:
            return found
        return replace(found, speculation=Speculation.of(one.engine.drafting for one in self._every_replica()))

    def take_for_cached(self, prompt: Sequence[Part]) -> None:
        """Let whatever is a beginning of this prompt stay in the decode pool, as if it were cached on all of it."""
        if self._transfers is not None:
            self._transfers.take_for_cached(self._prompts.names(prompt, self._capacity.block_size))

    @property
    def index(self) -> PrefixIndex:
        """What the prefix router knows of caches."""
        return self._kinds[0].index

    @property
    def transfer(self) -> TransferSummary | None:
        """Of what went from one pool to the other so far."""
        return None if self._transfers is None else self._transfers.summary(self._now - self._start)

    def _every_replica(self) -> list[Replica]:
        """Those that are there, and those that are no more."""
        return [*(one for one in self._replicas if one is not None), *(one for _, one in self._gone)]

    def _arrive(self, index: int) -> None:
        self.ledger.entries[index] = Entry(self._now, self._demands[index].input_len, -1)
        self._inside += 1
        self._place(index)

    def _place(self, index: int) -> None:
        """Hand a request to a replica, with the tokens that it has."""
        if not self._loads.up.any():
            self._held.append(index)
            return
        demand, entry = self._demands[index], self.ledger.entries[index]
        named = self._prompts.names if self._news is None else self._prompts.hashes
        names = named(demand.prompt, self._capacity.block_size) if self._names else ()
        ask = Ask(entry.input_len, names, (self._draw.random(), self._draw.random()))
        transfers, goes_on = self._transfers, False
        if transfers is None:
            chosen = self._router.route(ask, self._loads)
        else:
            chosen, stays = transfers.route(ask)
            goes_on = not stays and entry.tokens + 1 < demand.output_len
        entry.replica = chosen
        replica = self.replica(chosen)
        request = self.request(index, entry.tokens + 1 if goes_on else None)
        try:
            if goes_on and transfers is not None:
                transfers.check(self.request(index))
            replica.add(request, self._now, replayed=entry.replays > 0)
        except RequestError as error:
            self._inside -= 1
            self._refuse(index, entry, error.code or error.param or "refused")
        else:
            if goes_on and transfers is not None:
                transfers.begin(index, chosen, request, ask)
        self._follow(chosen, replica)

    # What its transfers ask of it

    @property
    def now(self) -> float:
        return self._now

    def entry(self, index: int) -> Entry:
        return self.ledger.entries[index]

    def request(self, index: int, tokens: int | None = None) -> Request:
        """As the workload asks for it, with the tokens that it has; of so many tokens, None: all."""
        demand = self._demands[index]
        return Request(
            str(index),
            self._prompts.tokens(demand.prompt),
            _PARAMS,
            max_tokens=demand.output_len if tokens is None else tokens,
            seed=index,
            priority=demand.priority,
            tenant=demand.tenant,
            output_ids=[ANSWER_TOKEN] * self.ledger.entries[index].tokens,
        )

    def wake_transfers(self, at: float) -> None:
        heapq.heappush(self._events, (at, _TRANSFER, 0))

    def replica(self, index: int) -> Replica:
        """Engines are made when they are first needed."""
        replica = self._replicas[index]
        if replica is None:
            kind = self._of[index]
            prompts = self._transfers is not None and kind is self._kinds[0]
            replica = kind.replica(self._take_prompts if prompts else self._take, self._seed)
            self._replicas[index] = replica
        return replica

    def _fail(self, place: int) -> None:
        """The fault at this place of all happens, unless its replica is no more."""
        fault = self._faults[place]
        index = fault.replica
        if fault.kind != LINK and not self._loads.up[index]:
            return
        back = self._startup_s if fault.kind == DIES else fault.lasts
        heapq.heappush(self._events, (self._now + back, _RECOVERY, place))
        if fault.kind in (LINK, SLOW):
            self._slowing.append(fault)
            self._slow(fault)
            return
        replica = self.replica(index)
        if fault.kind == DIES:
            replica.catch_up(self._now)
            self._slowing = [one for one in self._slowing if one.kind == LINK or one.replica != index]
            self._lose(index, replica)
            return
        replica.freeze(self._now, fault.lasts)
        self._follow(index, replica)

    def _slow(self, changed: Fault) -> None:
        """What this fault slows is as slow as all make it that have not ended."""
        alike = [one for one in self._slowing if one.kind == changed.kind]
        if changed.kind == LINK:
            assert self._transfers is not None, "links are of pools"
            self._transfers.slow([(one.link, one.factor) for one in alike])
            return
        replica = self.replica(changed.replica)
        replica.slow(self._now, prod(one.factor for one in alike if one.replica == changed.replica))
        self._follow(changed.replica, replica)

    def _lose(self, index: int, replica: Replica) -> None:
        """A replica is no more: others go on with its requests."""
        self._replicas[index] = None
        self._gone.append((index, replica))
        self._loads.up[index] = False
        self._tell(index, Load())
        if self._transfers is not None:
            self._transfers.lost(index)
        else:
            self._router.forget(index)
        for victim, entry in list(self.ledger.entries.items()):
            if entry.replica == index and not entry.ended and not entry.refused:
                entry.replays += 1
                self._place(victim)

    def _recover(self, fault: Fault) -> None:
        if fault.kind == DIES:
            self._loads.up[fault.replica] = True
            held, self._held = self._held, []
            for index in held:
                self._place(index)
            if self._transfers is not None:
                self._transfers.due()
        elif fault in self._slowing:
            self._slowing.remove(fault)
            self._slow(fault)

    def _more_to_come(self) -> bool:
        return bool(self._arrivals) or any(kind == _ARRIVAL for _, kind, _ in self._events)

    def _take(self, began: float, device: TimedExecutor, deltas: list[OutputDelta]) -> None:
        """Steps of a replica have ended."""
        for index in self.ledger.take(began, device.ends, deltas):
            self._inside -= 1
            # One that catches up may find that a request had ended a little earlier.
            self._spent -= self._now - device.now
            self._progress(1)
            for follower in self._followers.get(index, ()):
                at = max(self._now, device.now + self._demands[follower].at)
                heapq.heappush(self._events, (at, _ARRIVAL, follower))

    def _take_prompts(self, began: float, device: TimedExecutor, deltas: list[OutputDelta]) -> None:
        """Steps of a replica that computes prompts for others have ended."""
        assert self._transfers is not None
        self._transfers.computed(device.now, deltas)
        self._take(began, device, deltas)

    def _refuse(self, index: int, entry: Entry, reason: str) -> None:
        """A request, and with it those that were to follow it."""
        entry.refused = reason
        self._progress(1)
        for follower in self._followers.get(index, ()):
            after = self.ledger.entries[follower] = Entry(self._now, self._demands[follower].input_len, entry.replica)
            self._refuse(follower, after, "follows_refused")

    def _follow(self, index: int, replica: Replica) -> None:
        """A replica has moved."""
        if self._news is not None and (at := self._news.take(index, replica, self._now)) is not None:
            heapq.heappush(self._events, (at, _TOLD, index))
        self.heed(index, replica)
        if self._transfers is not None:
            self._transfers.heed(index, replica)

    def heed(self, index: int, replica: Replica) -> None:
        """Let the router know, and wake the replica when it wants to be."""
        self._tell(index, replica.load())
        if replica.wake < NEVER:
            heapq.heappush(self._events, (replica.wake, _WAKE, index))

    def _tell(self, index: int, load: Load) -> None:
        self._loads.report(index, load)
        if self._watch is not None:
            self._watch.see(self._now, index, load)

    def _move_to(self, at: float) -> None:
        self._spent += self._inside * (at - self._now)
        self._now = at

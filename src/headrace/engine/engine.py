"""Engine: policy and an executor, joined. A step is three verbs: schedule what to compute, submit it, and update
with what was collected. Time is an argument; nothing here waits but collect().

Drive it with step() while has_work, or with begin_step() and finish_step() where something is to be done between.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable

from headrace.core.config import Config
from headrace.core.errors import OverloadedError, RequestError
from headrace.core.priority import DEFAULT_PRIORITY
from headrace.core.request import ErrorCode, OutputDelta, Request
from headrace.engine.executor import Capacity, CompiledForms, Disk, Executor
from headrace.engine.journal import Journal
from headrace.engine.recovery import drain, rerun
from headrace.engine.wire import Stats
from headrace.policy.admission import Admission
from headrace.policy.block_events import BlockEvent
from headrace.policy.block_manager import BlockManager
from headrace.policy.budget import TimeTarget
from headrace.policy.exchange import Exchange
from headrace.policy.fairness import Accounts
from headrace.policy.latency import LatencyModel, Prior, StepWork
from headrace.policy.limits import Limits
from headrace.policy.preemption import Patience, Swap
from headrace.policy.queue import FairQueue
from headrace.policy.records import RequestRecord, StepRecord
from headrace.policy.replica import Load
from headrace.policy.row_cost import RowCost
from headrace.policy.scheduler import Scheduler
from headrace.policy.sequence import Sequence
from headrace.policy.slots import Slots
from headrace.policy.speculation import DraftCounters, Drafter, Speculation
from headrace.policy.steady import Repeats
from headrace.policy.tiers import Tiers
from headrace.policy.waiting_time import WaitingTime

log = logging.getLogger(__name__)

_WAIT_S = 0.01
"""How long to wait for the disk or for a form at once when nothing can be computed."""
_STEP_FAILED = "the engine failed while it computed this request; other requests are not affected"


class Engine:
    """Uses of the config: the settings of budget, queue, priorities and caching, and pipeline_depth; what the device
    holds comes from executor.capacity. prior: seconds that a step is expected to take before any was measured; None
    for the latency model's own. latency: a model to take instead of one that learns from there. limits: what each
    tenant may ask for, and its share. drafter: who guesses tokens ahead, None for nobody. forms: who compiles the forms
    of outputs, None if no step has to wait for it. receives: prompts computed elsewhere that may be on their way here
    at once."""

    def __init__(
        self,
        executor: Executor,
        config: Config,
        *,
        prior: Prior | None = None,
        latency: LatencyModel | None = None,
        limits: Limits | None = None,
        drafter: Drafter | None = None,
        disk: Disk | None = None,
        forms: CompiledForms | None = None,
        fingerprint: str = "",
        receives: int = 0,
    ) -> None:
        has = executor.capacity
        self._executor = executor
        self._depth = config.pipeline_depth
        self._blocks = BlockManager(
            num_slots=has.num_slots + receives,
            max_model_len=has.max_model_len,
            block_size=has.block_size,
            num_blocks=has.num_blocks,
            windows=has.windows,
            reach=config.max_num_batched_tokens * config.pipeline_depth,
            caching=config.enable_prefix_caching,
            fingerprint=fingerprint,
            recording=config.kv_events_endpoint is not None,
            tiers=_tiers(has, disk) if config.enable_prefix_caching else None,
            copy_now=None if drafter is None else drafter.copy,
        )
        self._exchange = Exchange(self._blocks, range(has.num_slots, has.num_slots + receives))
        self._disk = disk
        self._forms = forms
        self._slots = Slots(has.num_slots, has.max_model_len)
        limits = limits or Limits()
        self._queue = FairQueue(
            Accounts(lambda tenant: limits.of(tenant).weight),
            aging_s=config.priority_aging_s,
            aging_cap=config.priority_aging_cap,
        )
        self.latency = LatencyModel(prior) if latency is None else latency
        target = config.target_itl_ms
        self._speculation = None
        if drafter is not None:
            most = config.num_speculative_tokens
            self._speculation = Speculation(drafter, RowCost(self.latency), num_slots=has.num_slots, most=most)
        self._scheduler = Scheduler(
            self._slots,
            self._blocks,
            self._queue,
            budget=config.max_num_batched_tokens,
            target=None if target is None else TimeTarget(target / 1000, self.latency),
            patience=Patience(config.max_preemptions),
            swap=_swap(has, self.latency),
            speculation=self._speculation,
            forms=forms,
        )
        self._admission = Admission(
            max_model_len=has.max_model_len,
            vocab_size=has.vocab_size,
            max_queued_requests=config.max_queued_requests,
            max_queued_tokens=config.max_queued_tokens,
            limits=limits,
            waiting_time=WaitingTime(self.latency, slots=has.num_slots, budget=config.max_num_batched_tokens),
        )
        self.journal = Journal(requests=config.request_log, steps=config.step_ring)
        # Whether anyone wants to know what single steps computed.
        self._watches = self.latency.learning or self._speculation is not None or self.journal.ring is not None
        self._budget = config.max_num_batched_tokens
        self._refused: Counter[str] = Counter()
        self._ready: list[OutputDelta] = []
        # What each step under way computes (None: several taken as one), when it was begun, and its record; when the
        # last one came back.
        self._begun: deque[tuple[StepWork | None, float, StepRecord | None]] = deque()
        self._collected = self._now = float("-inf")

    def add(self, request: Request, now: float, *, replayed: bool = False) -> None:
        """Take a request. Raises RequestError if it can never run, OverloadedError if it may be tried later (not if
        it is replayed: then it was taken before)."""
        owed = any(delta.request_id == request.request_id for delta in self._ready)
        if owed or request.request_id in self._scheduler:
            raise RequestError(f"request_id {request.request_id!r} is in use", param="request_id")
        self._admission.check_possible(request, self._blocks)
        if not replayed:
            self._check_load(request, now)
        answer = self._scheduler.add(request, now)
        if answer is not None:
            self._ready.append(answer)
            return
        self._admission.take(request, now)
        self.journal.take(request, now)
        self._follow(now)

    def abort(self, request_ids: Iterable[str], now: float) -> None:
        """End these requests and free what they hold, at once; their last deltas come with the next finish_step.
        Unknown ids are ignored."""
        self._ready += self._scheduler.abort(request_ids)
        self._follow(now)

    def check(self, request: Request) -> None:
        """Raises RequestError if it can never run."""
        self._admission.check_possible(request, self._blocks)

    def expect(self, request: Request) -> int | None:
        """Make room for what another engine computes of this request's tokens, those that are known now. How many of
        them are cached here, so that they need not be sent; None if there is no room now."""
        tokens = Sequence.of(request, 0).tokens
        running, promised = self._slots.num_taken, self._scheduler.promised()
        return self._exchange.expect(request.request_id, request.cache_salt, tokens, running, promised)

    def receive(self, request: Request, now: float) -> None:
        """What was expected is here: go on with the request, which has a token more by now."""
        self._exchange.arrived(request.request_id)
        self.add(request, now, replayed=True)

    def keep(self, request: Request) -> None:
        """Keep what was computed of this request's tokens until it is let go: it is being sent to another engine."""
        self._exchange.keep(request.request_id, request.cache_salt, Sequence.of(request, 0).tokens)

    def let_go(self, request_id: str) -> None:
        """Of what is kept or expected of a request. Unknown ones are ignored."""
        self._exchange.let_go(request_id)

    def progress(self) -> dict[str, int]:
        """Positions that are done of each running request."""
        return self._scheduler.progress()

    @property
    def lent(self) -> bool:
        """Whether blocks are held for requests that do not run here, so that those that wait may have to."""
        return self._blocks.lent > 0

    def step(self, clock: Callable[[], float]) -> list[OutputDelta]:
        """Begin as many steps as may be under way, then finish the oldest."""
        while self.begin_step(clock()):
            pass
        return self.finish_step(clock)

    def begin_step(self, now: float) -> bool:
        """Begin a step unless enough are under way or nothing can move. False if none was begun."""
        if len(self._scheduler.steps) >= self._depth:
            return False
        timed = self._admission.has_deadlines
        for request_id, message in self._admission.late(now) if timed else ():
            self._ready.append(self._scheduler.give_up(request_id, message, ErrorCode.DEADLINE_EXCEEDED))
        self._blocks.clock(now)
        self._take_results(0.0)
        preempted = self._scheduler.counters.preemptions
        # How many steps may be taken as one, as far as device and deadlines are concerned.
        most = 1 if timed or self._depth > 1 else self._executor.horizon()
        batch = self._scheduler.advance(most, now)
        self._follow(now)
        if batch is None:
            if self._scheduler.num_forming:
                self.journal.hold(self._scheduler, now)
            return False
        preempted = self._scheduler.counters.preemptions - preempted
        work = None
        if batch.steps == 1 and self._watches:
            work = self._scheduler.steps[-1].work or StepWork.of(batch)
        record = self.journal.begin(batch, work, self._scheduler, now, budget=self._budget, preempted=preempted)
        self._begun.append((work, now, record))
        self._executor.submit(batch)
        return True

    def finish_step(self, clock: Callable[[], float]) -> list[OutputDelta]:
        """Wait for the oldest step under way, if any, and return what each request is sent."""
        ready, self._ready = self._ready, []
        if self._scheduler.steps:
            try:
                output = self._executor.collect()
            except Exception:  # an executor may raise anything
                log.exception("step %d failed; looking for the request at fault", self._scheduler.steps[0].batch.step)
                ready += self._recover()
                self._begun.clear()
            else:
                drafted = self._scheduler.steps[0].drafted is not None
                work, seconds = self._observe(clock())
                ready += self._scheduler.update(output)
                if self._speculation is not None and work is not None:
                    # Where nothing else is under way, the device waits for what is done with its answer.
                    rest = 0.0 if self._scheduler.steps else clock() - self._collected
                    self._speculation.observe(work, seconds + rest, drafted=drafted)
        else:
            self._take_results(_WAIT_S)
        self._follow(clock())
        return ready

    def next_chore(self, now: float) -> float | None:
        """Seconds until something is to be moved between tiers by a step though no request asks for one; None where
        there is nothing."""
        return self._blocks.next_chore(now)

    def settle(self, clock: Callable[[], float], most_s: float) -> None:
        """Bring what is cached down to where it outlives this engine, for so many seconds at most."""
        self._blocks.lower_at_once()
        end = clock() + most_s
        while self._blocks.next_chore(clock()) is not None and clock() < end:
            self._ready += self.step(clock)

    def take_events(self) -> list[BlockEvent]:
        """What was stored in the prefix cache and removed from it since the last call, if it is recorded."""
        return self._blocks.take_events()

    def _check_load(self, request: Request, now: float) -> None:
        try:
            self._admission.check_load(request, running=self._slots.num_taken, free_slots=self._slots.num_free, now=now)
        except OverloadedError as error:
            self._refused[error.code or ""] += 1
            raise

    def _take_results(self, wait_s: float) -> None:
        """Take in what the disk and the compiling of forms have done; waits so long if anything is under way."""
        if self._forms is not None and self._scheduler.num_forming:
            self._forms.wait(wait_s)
            self._scheduler.look_again()
            wait_s = 0.0
        if self._disk is not None and self._blocks.tiers is not None and self._blocks.tiers.busy:
            self._scheduler.take_results(self._disk.results(wait_s))

    def _follow(self, now: float) -> None:
        """Let those know who keep account of requests."""
        self._now = now
        if moves := self._scheduler.take_moves():
            self._admission.follow(moves, now)
            self.journal.follow(moves, now)
            self._exchange.follow(moves)
            if self._speculation is not None:
                self._speculation.follow(moves)

    def _observe(self, now: float) -> tuple[StepWork | None, float]:
        """Learn how long the oldest step took; it waited for those begun before it. Returns what it computed, if that
        is known, and the seconds."""
        work, begun, record = self._begun.popleft()
        seconds = max(0.0, now - max(begun, self._collected))
        if record is not None:
            record.took_ms = 1e3 * seconds
        if work is not None and work.tokens:
            self.latency.observe(work, seconds)
        self._collected = now
        return work, seconds

    def _recover(self) -> list[OutputDelta]:
        """Finish all steps under way, of which the oldest has raised."""
        scheduler = self._scheduler
        drain(self._executor, len(scheduler.steps) - 1)
        sent: list[OutputDelta] = []
        while scheduler.steps:
            step = scheduler.steps[0]
            output, culprits = rerun(self._executor, step.batch, step.alive(self._slots.serial))
            sent += [scheduler.fail(int(step.batch.slots[entry]), _STEP_FAILED) for entry in culprits]
            sent += scheduler.update(output)
        return sent

    def repeats(self) -> Repeats | None:
        """The steps that come next and may be taken as one, if nothing comes between. None if there are none."""
        return None if self._depth > 1 or self._admission.has_deadlines else self._scheduler.repeats()

    def load(self) -> Load:
        """What there is to do, as a router sees it."""
        backlog, slots = self._admission.backlog, self._slots
        return Load(
            waiting=self._scheduler.num_waiting + self._exchange.num_coming,
            tokens=backlog.tokens + self._scheduler.tokens_behind,
            running=slots.num_taken,
            blocks_used=self._blocks.blocks_held,
            blocks_total=self._blocks.blocks_total,
        )

    @property
    def drafting(self) -> DraftCounters:
        """What guessing ahead has brought so far."""
        return DraftCounters() if self._speculation is None else self._speculation.counters

    @property
    def row_costs(self) -> list[tuple[int, bool, float, int]]:
        """What steps take, if that is learnt: rows, whether some are guesses, seconds, of how many comparisons."""
        return [] if self._speculation is None else self._speculation.cost.measured()

    @property
    def preemptions(self) -> int:
        """How often a request had to give way so far."""
        return self._scheduler.counters.preemptions

    @property
    def has_work(self) -> bool:
        """Whether stepping can still bring anything."""
        return self._scheduler.has_work or bool(self._ready)

    def inspect(self, request_id: str, steps: int, now: float) -> tuple[list[RequestRecord], list[StepRecord]]:
        """What became of a client's request, one record for each of its sequences, and the last steps."""
        found = self.journal.log.find(request_id, now) if request_id else []
        for record in found:
            ahead = self.journal.log.ahead(record)
            if ahead is not None:
                record.position = ahead.requests + 1
                record.predicted_wait_s = self._admission.wait_behind(ahead, self._slots.num_taken)
        ring = self.journal.ring
        return found, ring.latest(steps, self.latency) if ring is not None else []

    def stats(self) -> Stats:
        counters, admission, drafting = self._scheduler.counters, self._admission, self.drafting
        return Stats(
            step=self._scheduler.num_steps,
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            blocks_used=self._blocks.blocks_held,
            blocks_total=sum(self._executor.capacity.num_blocks),
            blocks_cached=self._blocks.blocks_idle,
            preemptions=counters.preemptions,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            cached_tokens=counters.cached_tokens,
            finished=dict(counters.finished),
            waiting_tokens=admission.backlog.tokens,
            waiting_by_priority=admission.backlog.by_priority(),
            predicted_wait=admission.predicted_wait(self._slots.num_taken, DEFAULT_PRIORITY, ""),
            oldest_wait=self.journal.log.oldest_wait(self._now),
            hits_by_tier={
                "device": counters.cached_tokens - counters.host_tokens - counters.disk_tokens,
                "host": counters.host_tokens,
                "disk": counters.disk_tokens,
            },
            preemptions_by_kind=[(*key, count) for key, count in self.journal.log.preemptions.items()],
            refused=dict(self._refused),
            latency_error=self.latency.error,
            drafts=drafting.drafts,
            drafted_tokens=drafting.proposed,
            accepted_tokens=drafting.accepted,
            accepted_by_position=drafting.by_position,
            saved_seconds=drafting.saved_seconds,
            queue_seconds=self.journal.queue_seconds.read(),
            inference_seconds=self.journal.inference_seconds.read(),
        )


def _tiers(has: Capacity, disk: Disk | None) -> Tiers | None:
    return None if has.tiers is None else Tiers(has.tiers, () if disk is None else disk.stored())


def _swap(has: Capacity, latency: LatencyModel) -> Swap | None:
    return None if has.tiers is None else Swap(latency, sum(has.tiers.block_bytes) / has.block_size)

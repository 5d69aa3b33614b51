"""Journal: what an engine can tell of its requests and steps afterwards. It owns the log of requests, the ring of steps
and the histograms of how long requests waited and ran; it is told, and never asked for a decision.
"""

from collections.abc import Sequence

from headrace.core.batch import Batch
from headrace.core.request import Request
from headrace.policy.histogram import Histogram
from headrace.policy.holdup import Holdup, holdup
from headrace.policy.latency import StepWork
from headrace.policy.moves import Move
from headrace.policy.records import StepRecord
from headrace.policy.request_log import RequestLog
from headrace.policy.scheduler import Scheduler
from headrace.policy.step_ring import StepRing

SECONDS_BOUNDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
"""vLLM's, for how long requests wait and run."""


class Journal:
    """requests, steps: how many that ended are kept; 0 for none."""

    def __init__(self, *, requests: int, steps: int) -> None:
        self.log = RequestLog(requests)
        self.ring = StepRing(steps) if steps else None
        self.queue_seconds = Histogram(SECONDS_BOUNDS)
        self.inference_seconds = Histogram(SECONDS_BOUNDS)

    def take(self, request: Request, now: float) -> None:
        self.log.take(request, now)

    def hold(self, scheduler: Scheduler, now: float) -> tuple[int, Holdup]:
        """How many wait, who are held up from now on by what the scheduler's last plan left, and by what."""
        waiting, held_up_by = scheduler.num_waiting, Holdup.STEP
        if waiting:
            queued = len(scheduler.queue)
            held_up_by = holdup(
                queued=queued,
                parked=waiting - queued,
                forming=scheduler.num_forming,
                free_slots=scheduler.slots.num_free,
                tokens_left=not scheduler.crowded,
            )
        self.log.clock.hold(held_up_by, now)
        return waiting, held_up_by

    def begin(
        self,
        batch: Batch,
        work: StepWork | None,
        scheduler: Scheduler,
        now: float,
        *,
        budget: int,
        preempted: int,
    ) -> StepRecord | None:
        """A step was begun, and what it left waiting is held up from now on. Returns its record, to be completed when
        it is done; None if steps are not kept."""
        waiting, held_up_by = self.hold(scheduler, now)
        if self.ring is None:
            return None
        head = scheduler.queue.peek() if waiting else None
        record = StepRecord(
            step=batch.step,
            begun_s=now,
            requests=len(batch.slots),
            tokens=batch.num_tokens if work is None else work.tokens,
            budget=budget,
            joined=len(batch.joins),
            preempted=preempted,
            running=scheduler.num_running,
            waiting=waiting,
            held_up_by=held_up_by if waiting else None,
            next=None if head is None else head.request_id,
        )
        self.ring.write(record, work)
        return record

    def follow(self, moves: Sequence[Move], now: float) -> None:
        begun, ended = self.log.follow(moves, now)
        for seconds in begun:
            self.queue_seconds.observe(seconds)
        for seconds in ended:
            self.inference_seconds.observe(seconds)

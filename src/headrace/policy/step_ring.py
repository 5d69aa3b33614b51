"""The last steps: what each computed, how long it took, and why those who waited did not run. Writing one costs a few
microseconds, so that it can be left on; what a step was worth is worked out when someone asks.
"""

from __future__ import annotations

from collections import deque

import msgspec

from headrace.policy.holdup import Holdup
from headrace.policy.latency import LatencyModel, StepWork


class StepRecord(msgspec.Struct, gc=False):
    """begun_s is on the engine's clock. requests, tokens: entries of the batch and positions they compute; budget: most
    tokens that it might have had. joined: requests that began or resumed in it; preempted: those that gave way.
    running, waiting: once it was planned. held_up_by: why those who wait did not run; next: the id of who is first
    among them. took_ms: None while it is under way.
    predicted_ms: what the latency model expects of such a step, None for several at once."""

    step: int
    begun_s: float
    requests: int
    tokens: int
    budget: int
    joined: int
    preempted: int
    running: int
    waiting: int
    held_up_by: Holdup | None
    next: str | None
    predicted_ms: float | None = None
    took_ms: float | None = None


class StepRing:
    def __init__(self, size: int) -> None:
        self._steps: deque[tuple[StepRecord, StepWork | None]] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._steps)

    def write(self, record: StepRecord, work: StepWork | None) -> None:
        """A step was begun. work: None if it stands for several steps at once."""
        self._steps.append((record, work))

    def latest(self, count: int, latency: LatencyModel) -> list[StepRecord]:
        """The last `count` steps, the newest first, with what the model says of them by now."""
        newest = [entry for entry, _ in zip(reversed(self._steps), range(count), strict=False)]
        return [
            record if work is None else msgspec.structs.replace(record, predicted_ms=1e3 * latency.predict(work))
            for record, work in newest
        ]

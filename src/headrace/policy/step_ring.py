"""The last steps: what each computed, how long it took, and why those who waited did not run. Writing one costs a few
microseconds, so that it can be left on; what a step was worth is worked out when someone asks.
"""

from collections import deque

import msgspec

from headrace.policy.latency import LatencyModel, StepWork
from headrace.policy.records import StepRecord


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

"""A device that answers every step with the same token and says how long the step would have taken. It computes
nothing, so what is measured or counted around it is policy alone; NullExecutor, whose tokens tell whether policy was
right, is for tests.
"""

from collections import deque
from collections.abc import Callable

import numpy as np

from headrace.core.batch import Batch, BatchOutput
from headrace.engine.executor import Capacity

TOKEN = 7


class TimedDevice:
    """now: seconds since the start; each step that is collected moves it by step_s(batch)."""

    def __init__(self, capacity: Capacity, step_s: Callable[[Batch], float] = lambda batch: 0.0) -> None:
        self._capacity = capacity
        self._step_s = step_s
        self._submitted: deque[Batch] = deque()
        self.now = 0.0

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, batch: Batch) -> None:
        self._submitted.append(batch)

    def collect(self) -> BatchOutput:
        batch = self._submitted.popleft()
        self.now += self._step_s(batch)
        rows = len(batch.logit_entry)
        return BatchOutput(batch.step, np.full(rows, TOKEN, np.int32), np.zeros(rows, np.bool_))

    def horizon(self) -> int:
        return 1

"""An Executor that answers with times: a device in virtual time, which takes for each step what a Pace says, and names
every token the same. Steps that are alike may be taken as one, as many as begin before `until`; then it takes, to the
last bit, what the single ones would.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.core.batch import Batch, BatchOutput, BoolArray, IntArray
from headrace.engine.executor import Capacity
from headrace.policy.latency import StepWork
from headrace.policy.pace import Pace

ANSWER_TOKEN = 7

_FOREVER = float("inf")
_ROWS = 1 << 16
_TOKENS: IntArray = np.full(_ROWS, ANSWER_TOKEN, np.int32)
_SOUND: BoolArray = np.zeros(_ROWS, np.bool_)


class TimedExecutor:
    """now: seconds since the start, when the last step that was collected had ended; who drives it may move it on while
    nothing is under way. ends float64 [steps]: when each of the steps ends that were submitted last. until: when
    something is to happen, so that steps beginning later are not to be taken together with earlier ones."""

    def __init__(self, capacity: Capacity, pace: Pace) -> None:
        self._capacity = capacity
        self._pace = pace
        self._batch: Batch | None = None
        # The decodes that follow the last step, if it was of decodes alone, and when each step of them would end.
        self._following: StepWork | None = None
        self._ahead: npt.NDArray[np.float64] = np.zeros(0)
        self.ends: npt.NDArray[np.float64] = np.zeros(0)
        self.now = 0.0
        self.until = _FOREVER

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, batch: Batch) -> None:
        assert self._batch is None, "a step is under way"
        self._batch = batch
        work = StepWork.of(batch)
        decodes = work.tokens == work.requests == work.logit_rows
        if len(self._ahead) < batch.steps:
            self._ahead = self._ends(work, batch.steps)
        self.ends = self._ahead[: batch.steps]
        self._following = work.later(batch.steps) if decodes else None
        self._ahead = self._ahead[:0]

    def collect(self) -> BatchOutput:
        batch = self._batch
        assert batch is not None, "no step is under way"
        self._batch = None
        self.now = float(self.ends[-1])
        rows = len(batch.logit_entry) * batch.steps
        if rows <= _ROWS:
            return BatchOutput(batch.step, _TOKENS[:rows], _SOUND[:rows])
        return BatchOutput(batch.step, np.full(rows, ANSWER_TOKEN, np.int32), np.zeros(rows, np.bool_))

    def horizon(self) -> int:
        """How many of the steps that were looked ahead to begin before `until`."""
        if not len(self._ahead):
            return 1
        return max(1, min(len(self._ahead), 1 + int(np.searchsorted(self._ahead, self.until))))

    def look_ahead(self, steps: int) -> float:
        """When so many steps like the last one would have ended, begun now."""
        if self._following is None:
            raise ValueError("the last step was not of decodes alone")
        self._ahead = self._ends(self._following, steps)
        return float(self._ahead[-1])

    def _ends(self, work: StepWork, steps: int) -> npt.NDArray[np.float64]:
        """Added one after the other, as single steps are."""
        if steps == 1:
            return np.array([self.now + self._pace(work)])
        seconds = self._pace.run(work, steps)
        seconds[0] += self.now
        return np.add.accumulate(seconds)

"""An Executor that answers with times: a device in virtual time, which takes for each step what a Pace says, and names
every token the same. Steps that are alike may be taken as one, as many as begin by `until`; then it takes, to the last
bit, what the single ones would.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.core.batch import Batch, BatchOutput, BoolArray, IntArray
from headrace.engine.executor import Capacity
from headrace.policy.latency import StepWork
from headrace.policy.pace import Pace
from headrace.policy.steady import Repeats

ANSWER_TOKEN = 7

_FOREVER = float("inf")
_NOTHING: npt.NDArray[np.float64] = np.zeros(0)
_ROWS = 1 << 16
_TOKENS: IntArray = np.full(_ROWS, ANSWER_TOKEN, np.int32)
_SOUND: BoolArray = np.zeros(_ROWS, np.bool_)


class TimedExecutor:
    """now: seconds since the start, when the last step that was collected had ended; who drives it may move it on while
    nothing is under way. ends float64 [steps]: when each of the steps ends that were submitted last. until: when
    something is to happen, so that steps beginning later are not to be taken together with earlier ones. slowness:
    times as long that steps take. beside: seconds that the next step takes for something else as well."""

    def __init__(self, capacity: Capacity, pace: Pace, beside: Callable[[], float] | None = None) -> None:
        self._capacity = capacity
        self._pace = pace
        self._beside = beside
        self._batch: Batch | None = None
        self._ahead = self.ends = _NOTHING
        self.now = 0.0
        self.until = _FOREVER
        self.slowness = 1.0

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, batch: Batch) -> None:
        assert self._batch is None, "a step is under way"
        self._batch = batch
        if batch.steps == 1:
            seconds = self._pace(StepWork.of(batch))
            if self._beside is not None:
                seconds += self._beside()
            self.ends = np.array([self.now + self.slowness * seconds])
        else:
            self.ends = self._ahead[: batch.steps]
        self._ahead = _NOTHING

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
        """How many of the steps that were looked ahead to begin until then."""
        ahead = self._ahead
        if not len(ahead) or self.until >= ahead[-1]:
            return max(1, len(ahead))
        return min(len(ahead), 1 + int(ahead.searchsorted(self.until, side="right")))

    def look_ahead(self, repeats: Repeats) -> float:
        """When these steps would have ended, begun now. They may be taken as one from here on."""
        seconds = self._pace.run(repeats.work, repeats.steps) * self.slowness
        # Added one after the other, as single steps are.
        seconds[0] += self.now
        self._ahead = np.add.accumulate(seconds)
        return float(self._ahead[-1])

"""How a step's tokens are shared out: entries of one token (decodes, and last tokens of a prefill) first, then longer
ones in order, each cut to a chunk where tokens or time run out. The cut never changes what is generated.

With a time target, a chunk is as long as the latency model says the step may still grow. Some tokens go through in
any case, so that prompts move on beside any number of decodes; and where nobody decodes, nobody waits for the step.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from headrace.core.batch import IntArray
from headrace.policy.latency import LatencyModel, StepWork

LEAST_CHUNK = 16
"""Tokens of longer entries that go into a step whatever time it takes."""


@dataclass(frozen=True, slots=True)
class TimeTarget:
    """seconds: what a step with decodes should take at most, by this model."""

    seconds: float
    latency: LatencyModel


class StepBudget:
    """left: tokens that may still go into the step."""

    def __init__(self, tokens: int, target: TimeTarget | None = None) -> None:
        self.left = tokens
        self._target = target
        self._work = StepWork(0, 0)
        self._decodes = 0
        self._longer = 0

    def take_singles(self, starts: IntArray, wanting: IntArray) -> IntArray:
        """Tokens for entries that want one (wanting: 0 or 1, int32 [n]), in order while tokens last."""
        counts, taken = wanting, int(wanting.sum())
        if taken > self.left:
            counts = np.where(np.cumsum(wanting) <= self.left, wanting, 0)
            taken = int(counts.sum())
        self.left -= taken
        if self._target is not None:
            context = int((starts * counts).sum(dtype=np.int64)) + taken
            self._work = StepWork(taken, taken, context, 0.0, taken, taken)
            self._decodes = taken
        return counts

    def offer(self, start: int, wanted: int) -> int:
        """How many tokens one more entry may have whose first position is `start`."""
        count = min(wanted, self.left)
        target = self._target
        if target is None or count <= 0:
            return max(0, count)
        # The longest chunk with which the step ends in time, at least what goes through in any case.
        low = min(count, max(0, LEAST_CHUNK - self._longer)) if self._decodes else count
        longer = range(low + 1, count + 1)
        return low + bisect_right(longer, target.seconds, key=lambda n: target.latency.predict(self._with(start, n)))

    def take(self, start: int, count: int) -> None:
        """One more entry of this many tokens."""
        self.left -= count
        self._longer += count
        if self._target is not None:
            self._work = self._with(start, count)

    def _with(self, start: int, count: int) -> StepWork:
        work = self._work
        return StepWork(
            work.tokens + count,
            work.requests + 1,
            work.decode_context,
            work.prefill_pairs + count * (start + count / 2),
            work.logit_rows,
            work.sampled_rows,
        )

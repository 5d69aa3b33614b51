"""LocalExecutor: a step that Ctrl-C interrupted is still under way and can be collected, a step that failed is not."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from headrace.core.batch import Batch, BatchOutput
from headrace.engine.executor import Capacity
from headrace.worker.local_executor import LocalExecutor

CAPACITY = Capacity(num_slots=1, block_size=16, num_blocks=(4,), windows=(None,), max_model_len=64, vocab_size=8)


class FailingRunner:
    """Raises what it was given, in order, then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = deque(errors)

    def run(self, batch: Batch) -> BatchOutput:
        if self._errors:
            raise self._errors.popleft()
        return BatchOutput(batch.step, np.zeros(0, np.int32), np.zeros(0, np.bool_))


def batch(step: int) -> Batch:
    none = np.zeros(0, np.int32)
    return Batch(step, none, none, none, none, none, np.zeros(0, np.bool_), none)


def test_an_interrupted_step_is_collected_again():
    executor = LocalExecutor(FailingRunner(KeyboardInterrupt()), CAPACITY)
    executor.submit(batch(1))
    with pytest.raises(KeyboardInterrupt):
        executor.collect()
    assert executor.collect().step == 1


def test_a_failed_step_is_over():
    executor = LocalExecutor(FailingRunner(ValueError()), CAPACITY)
    executor.submit(batch(1))
    executor.submit(batch(2))
    with pytest.raises(ValueError):
        executor.collect()
    assert executor.collect().step == 2

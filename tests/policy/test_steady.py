"""A repeated step is the step that would have been planned anew: the same batches, array for array."""

import numpy as np
import pytest
from tests.engine.engine_driver import capacity, request, run

from headrace.core.config import Config
from headrace.engine.engine import Engine
from headrace.engine.null_executor import NullExecutor
from headrace.policy.scheduler import Scheduler


class Recorder(NullExecutor):
    def __init__(self, has):
        super().__init__(has)
        self.batches = []

    def submit(self, batch):
        self.batches.append(batch)
        super().submit(batch)


def batches(depth, windows):
    has = capacity(slots=5, block_size=4, blocks=40, windows=windows, max_model_len=64, vocab_size=1000)
    executor = Recorder(has)
    engine = Engine(executor, Config(pipeline_depth=depth, max_num_batched_tokens=32))
    lengths = (40, 33, 50, 21, 28, 9, 45)
    run(engine, [request(f"r{i}", range(3 + i), length, logprobs=i % 3 or None) for i, length in enumerate(lengths)])
    assert engine.stats().preemptions == 0
    return executor.batches


def flat(batch):
    for name in batch.__struct_fields__:
        value = getattr(batch, name)
        if name in ("edits", "copies"):
            yield from ((f"{name}.{one}", getattr(value, one)) for one in value.__struct_fields__)
        elif name == "joins":
            yield "joins", np.array([join.slot for join in value])
        else:
            yield name, np.asarray(value)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_repeated_steps_equal_planned_ones(depth, windows, monkeypatch):
    repeated = []
    repeat = Scheduler._repeat

    def counted(self, steady):
        batch = repeat(self, steady)
        repeated.append(batch is not None)
        return batch

    monkeypatch.setattr(Scheduler, "_repeat", counted)
    quick = batches(depth, windows)
    monkeypatch.setattr(Scheduler, "_repeat", lambda self, steady: None)
    slow = batches(depth, windows)
    assert sum(repeated) > len(quick) / 2, "most steps of this load repeat"
    assert len(quick) == len(slow)
    for one, other in zip(quick, slow, strict=True):
        for (name, mine), (_, theirs) in zip(flat(one), flat(other), strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=f"step {one.step}: {name}")
            assert mine.dtype == theirs.dtype

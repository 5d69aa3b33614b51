"""Running a workload in real time, by a clock that the device moves: requests come when they are due, answers are part
of later prompts, and a failure is told."""

from __future__ import annotations

import pytest

from headrace.bench.realtime import Texts, run_in_real_time
from headrace.bench.timed_device import TOKEN, TimedDevice
from headrace.core.config import Config
from headrace.core.errors import RequestError
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.workload.demand import ANSWER, Demand

VOCAB = 5000


@pytest.fixture
def run():
    """Timelines of demands through an engine whose steps take a second each."""
    device = TimedDevice(Capacity(4, 16, (64,), (None,), 512, VOCAB), lambda batch: 1.0)
    engine = Engine(device, Config(max_num_batched_tokens=64, max_num_seqs=4))

    def sleep(seconds):
        device.now += seconds

    def go(*demands, name="run", progress=lambda ended: None):
        return run_in_real_time(
            engine, demands, Texts(name, VOCAB), clock=lambda: device.now, sleep=sleep, progress=progress
        )

    go.engine = engine
    return go


def test_requests_come_when_they_are_due(run):
    told = []
    first, second = run(Demand(0.0, ((1, 8),), 2), Demand(10.5, ((2, 8),), 3), progress=told.append)
    assert (first.begun, first.tokens) == (0.0, [1.0, 2.0])
    assert (second.begun, second.tokens) == (10.5, [11.5, 12.5, 13.5])
    assert sum(told) == 2


def test_who_comes_during_a_step_has_waited_for_it(run):
    _, late = run(Demand(0.0, ((1, 8),), 3), Demand(0.25, ((2, 8),), 1))
    assert (late.begun, late.tokens) == (0.25, [2.0])


def test_a_follow_up_comes_after_the_answer_and_has_it_in_its_prompt(run):
    before = run.engine.stats().cached_tokens
    demands = (
        Demand(0.0, ((1, 31),), 2),
        Demand(5.0, ((1, 31), (ANSWER, 2), (3, 4)), 1, follows=0),
        Demand(5.0, ((1, 31), (ANSWER, 2), (3, 4), (ANSWER, 1), (4, 1)), 1, follows=1),
    )
    first, second, third = run(*demands)
    assert second.begun == first.last + 5.0 and third.begun == second.last + 5.0
    # The last token that was generated was never computed.
    assert run.engine.stats().cached_tokens - before == 32 + 37
    assert Texts("run", VOCAB).prompt(demands[1].prompt, [[TOKEN, TOKEN]])[31:33] == [TOKEN, TOKEN]


def test_texts_of_another_name_share_nothing(run):
    run(Demand(0.0, ((1, 64),), 1))
    run(Demand(0.0, ((1, 64),), 1), name="other")
    assert run.engine.stats().cached_tokens == 0
    run(Demand(0.0, ((1, 64),), 1))
    assert run.engine.stats().cached_tokens == 63


def test_what_can_never_run_is_refused(run):
    with pytest.raises(RequestError):
        run(Demand(0.0, ((1, 600),), 1))

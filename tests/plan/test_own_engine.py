"""An engine that runs against what another has learnt: over a device whose steps take a known sum, every median is."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.bench.realtime import Texts, run_in_real_time
from headrace.bench.timed_device import TimedDevice
from headrace.bench.timeline import Timeline
from headrace.core.config import Config
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.plan.own_engine import QUICK, WHOLE, Loop, Trial, closed_loops, validate_here
from headrace.policy.latency import LinearPrior, StepWork
from headrace.workload.demand import Demand

HOLDS = Capacity(16, 16, (512,), (None,), 512, 5000)
CONFIG = Config(max_num_batched_tokens=256, max_num_seqs=16, step_ring=10_000)
TRUE = LinearPrior(step=5e-3, token=4e-4, request=2e-4, context=2e-7, pair=1e-7, row=1e-4)


class Bench:
    """Engines over devices of their own, run in their devices' time."""

    def __init__(self) -> None:
        self.devices: dict[int, TimedDevice] = {}

    def engine(self, slower: float = 1.0) -> Engine:
        device = TimedDevice(HOLDS, lambda batch: slower * TRUE(StepWork.of(batch)))
        engine = Engine(device, CONFIG)
        self.devices[id(engine)] = device
        return engine

    def run(self, engine: Engine, demands: list[Demand], texts: Texts, **rest: Any) -> list[Timeline]:
        device = self.devices[id(engine)]

        def sleep(seconds: float) -> None:
            device.now += seconds

        return run_in_real_time(engine, demands, texts, clock=lambda: device.now, sleep=sleep, **rest)


@pytest.mark.parametrize("trial", [QUICK, WHOLE])
def test_loads_of_other_shapes_are_predicted(trial: Trial) -> None:
    bench, told = Bench(), list[int]()
    report = validate_here(
        bench.engine(), bench.engine(), HOLDS, trial, config=CONFIG, run=bench.run, progress=told.append
    )
    assert sum(told) == trial.requests
    assert report["predicted"] == report["within_goal"] == 3 * len(trial.predicted)
    for found in report["loads"].values():
        assert all(found[metric]["p50"]["error"] < 0.05 for metric in ("ttft_ms", "tpot_ms", "e2e_ms"))


def test_an_engine_unlike_the_one_that_was_learnt_from_is_not_predicted() -> None:
    bench = Bench()
    report = validate_here(bench.engine(), bench.engine(2.0), HOLDS, QUICK, config=CONFIG, run=bench.run)
    assert report["within_goal"] == 0


def test_each_loop_begins_when_the_first_client_of_the_one_before_has_ended() -> None:
    demands = closed_loops([Loop(2, 3, 10, 5), Loop(1, 2, 20, 7)])
    assert [one.follows for one in demands] == [None, 0, 1, None, 3, 4, 2, 6]
    assert [one.input_len for one in demands] == [10] * 6 + [20] * 2
    assert demands[0].at < demands[3].at

"""Fidelity: over a device whose steps take what a sum says, simulated latencies are those of the run to a percent."""

from __future__ import annotations

import pytest

from headrace.bench.realtime import run_in_real_time
from headrace.bench.timed_device import TimedDevice
from headrace.core.config import Config
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.policy.latency import LinearPrior, StepWork
from headrace.simulate.fidelity import Seen, compare, measure_fidelity
from headrace.simulate.result import Percentiles
from headrace.workload.arrivals import poisson
from headrace.workload.conversations import Kind, open_load
from headrace.workload.lengths import geometric, uniform, waits

HOLDS = Capacity(8, 16, (512,), (None,), 1024, 5000)
CONFIG = Config(max_num_batched_tokens=256, max_num_seqs=8, step_ring=10_000)
TRUE = LinearPrior(step=5e-3, token=4e-4, request=2e-4, context=2e-7, pair=1e-7, row=1e-4)


def test_a_run_is_predicted_from_what_another_engine_learnt():
    devices = {}

    def engine():
        device = TimedDevice(HOLDS, lambda batch: TRUE(StepWork.of(batch)))
        made = Engine(device, CONFIG)
        devices[id(made)] = device
        return made

    def run(engine, demands, texts, **rest):
        device = devices[id(engine)]

        def sleep(seconds):
            device.now += seconds

        return run_in_real_time(engine, demands, texts, clock=lambda: device.now, sleep=sleep, **rest)

    kind = Kind(lambda draw: (), uniform(20, 200), uniform(5, 40), geometric(1.5), waits(0.1, 0.3))
    demands, calibration = (open_load(kind, poisson, requests=60, rate=8.0, seed=seed) for seed in (1, 2))
    told = []
    report = measure_fidelity(
        engine(), engine(), HOLDS, demands, calibration, config=CONFIG, rounds=2, run=run, progress=told.append
    )
    assert sum(told) == 240 and report["requests"] == 60
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for percentile in ("p50", "p99"):
            found = report[metric][percentile]
            assert found["spread"] < 0.02 and found["error"] < 0.02 and found["within_goal"]
            assert found["simulated"] == pytest.approx(found["real"], rel=0.02)


def seen(value):
    return Seen(*[Percentiles(value, value, value)] * 3)


@pytest.mark.parametrize(
    ("real", "simulated", "good"),
    [((100, 100, 100), 109, True), ((100, 100, 100), 111, False), ((90, 100, 110), 129, True)],
)
def test_the_goal_is_the_larger_of_a_tenth_and_the_spread(real, simulated, good):
    found = compare([seen(one) for one in real], seen(simulated))["ttft_ms"]["p50"]
    assert found["real"] == 100 and found["within_goal"] is good
    assert found["error"] == pytest.approx(simulated / 100 - 1)

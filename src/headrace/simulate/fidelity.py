"""How far the simulator is from an engine that really runs: the same workload through both, one in real time and one in
virtual time, whose clock is what another engine has learnt from another load. Calibration and real runs take turns, so
that both meet what else the machine does; how far the real runs are from each other is told beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from headrace.bench.realtime import Texts, run_in_real_time
from headrace.bench.timeline import Timeline
from headrace.core.config import Config
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.policy.latency import Prior, StepWork
from headrace.policy.pace import Host, Pace
from headrace.simulate.fleet import VOCABULARY
from headrace.simulate.guesses import Guessing
from headrace.simulate.result import Percentiles, Result
from headrace.simulate.simulator import simulate
from headrace.workload.demand import Demand

ERROR_GOAL = 0.10
SPREAD_GOAL = 1.5
"""A prediction is good within the larger of a tenth and one and a half times what real runs differ by."""

RealRun = Callable[..., list[Timeline]]
"""run_in_real_time, or that with another clock."""

METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
_UNBOUNDED = 2**31
_WARM = 4
"""Requests of a run before all others, which meets cold memory and a model that has learnt nothing."""
_LONGER = 0
"""Stands for steps with prompts among them."""
_ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Here:
    """An engine on this machine, as the simulator takes it. holds: its executor's capacity; settings: its own; prior:
    seconds of its steps."""

    holds: Capacity
    settings: Config
    prior: Prior
    replicas: int = 1
    guessing: Guessing | None = None

    def capacity(self) -> Capacity:
        return replace(self.holds, vocab_size=VOCABULARY)

    def config(self) -> Config:
        return replace(self.settings, max_queued_requests=_UNBOUNDED, request_log=0, step_ring=0)

    def pace(self) -> Pace:
        return Pace(self.prior, Host())


def learnt(engine: Engine) -> Prior:
    """What an engine's steps take: as its latency model says, times by which steps of as many rows took longer in the
    median than it says. The model is a sum of so much for each thing done; what a processor takes for one row, two or
    eight is no straight line."""
    _, steps = engine.inspect("", engine.stats().step, 0.0)
    times: dict[int, list[float]] = {}
    for step in steps:
        if step.took_ms and step.predicted_ms:
            rows = step.requests if step.tokens == step.requests else _LONGER
            times.setdefault(rows, []).append(step.took_ms / step.predicted_ms)
    known = {rows: median(ratios) for rows, ratios in sorted(times.items()) if len(ratios) >= _ENOUGH}
    decodes = [rows for rows in known if rows != _LONGER] or [1]
    factors = [known.get(rows, 1.0) for rows in decodes]
    predict, longer = engine.latency.predict, known.get(_LONGER, 1.0)

    def seconds(work: StepWork) -> float:
        factor = longer if work.tokens > work.requests else float(np.interp(work.requests, decodes, factors))
        return factor * predict(work)

    return seconds


@dataclass(frozen=True, slots=True)
class Seen:
    """Latencies of one run, real or simulated."""

    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles

    @classmethod
    def of(cls, lines: Sequence[Timeline]) -> Seen:
        several = [line for line in lines if len(line.tokens) > 1]
        return cls(
            Percentiles.of(np.array([1e3 * (line.first - line.begun) for line in lines])),
            Percentiles.of(np.array([1e3 * (line.last - line.first) / (len(line.tokens) - 1) for line in several])),
            Percentiles.of(np.array([1e3 * (line.last - line.begun) for line in lines])),
        )

    @classmethod
    def of_result(cls, result: Result) -> Seen:
        return cls(result.ttft_ms, result.tpot_ms, result.e2e_ms)


def measure_fidelity(
    learning: Engine,
    serving: Engine,
    capacity: Capacity,
    demands: Sequence[Demand],
    calibration: Sequence[Demand],
    *,
    config: Config,
    rounds: int = 3,
    run: RealRun = run_in_real_time,
    progress: Callable[[int], object] = lambda ended: None,
) -> dict[str, Any]:
    """learning, serving: two engines alike, of this capacity and with this config; predicted is what the first learns.
    progress is told how many requests more have ended, of rounds * (demands + calibration)."""
    real = []
    vocab_size = capacity.vocab_size
    for engine in (learning, serving):
        run(engine, calibration[:_WARM], Texts("warm", vocab_size))
    for number in range(rounds):
        run(learning, calibration, Texts(f"calibration {number}", vocab_size), progress=progress)
        lines = run(serving, demands, Texts(f"real {number}", vocab_size), progress=progress)
        real.append(Seen.of(lines))
    simulated = simulate(demands, Here(capacity, config, learnt(learning)))
    return {
        "requests": len(demands),
        "rounds": rounds,
        "latency_model_error": learning.latency.error,
        "simulation_wall_s": simulated.wall_s,
        **compare(real, Seen.of_result(simulated)),
    }


def compare(real: Sequence[Seen], simulated: Seen) -> dict[str, Any]:
    """By metric and percentile: the median of the real runs, their spread (largest less least, over the median), what
    was simulated, its error, and whether that is within the goal."""
    report: dict[str, Any] = {}
    for metric in METRICS:
        for percentile in ("p50", "p99"):
            runs = [getattr(getattr(one, metric), percentile) for one in real]
            predicted, middle = getattr(getattr(simulated, metric), percentile), median(runs)
            spread = (max(runs) - min(runs)) / middle if middle else 0.0
            error = abs(predicted - middle) / middle if middle else 0.0
            allowed = max(ERROR_GOAL, SPREAD_GOAL * spread)
            report.setdefault(metric, {})[percentile] = {
                "real": middle,
                "simulated": predicted,
                "error": error,
                "spread": spread,
                "within_goal": error <= allowed,
            }
    return report

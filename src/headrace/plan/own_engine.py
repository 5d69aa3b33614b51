"""Predicted against measured on an engine that runs here: closed loops of a few clients, each load played in real time
and in virtual time by what another engine has learnt from loads of other shapes (simulate/fidelity.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.realtime import run_in_real_time
from headrace.core.config import Config
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.simulate.fidelity import METRICS, RealRun, measure_fidelity
from headrace.workload.demand import Demand

_CLIENT_S = 2e-3
"""What a client takes to send its next prompt, and by how much clients begin after one another: less than a step, but
not nothing, so that the step after an answer begins without the prompt that follows, in real as in virtual time."""
_SERIES = 10_000  # prompts of one at most


@dataclass(frozen=True, slots=True)
class Loop:
    """clients at once, each sending its next prompt when its answer has ended, so many in all; lengths in tokens."""

    clients: int
    rounds: int
    prompt: int
    answer: int

    @property
    def name(self) -> str:
        return f"{self.clients} x {self.prompt}/{self.answer}"


@dataclass(frozen=True, slots=True)
class Trial:
    """seen: loads that are learnt from, one after the other. predicted: loads that are not."""

    seen: tuple[Loop, ...]
    predicted: tuple[Loop, ...]
    rounds: int = 3

    @property
    def requests(self) -> int:
        """That end in all."""
        seen = sum(loop.clients * loop.rounds for loop in self.seen)
        return self.rounds * sum(loop.clients * loop.rounds + seen for loop in self.predicted)


WHOLE = Trial(
    seen=(Loop(1, 1, 48, 24), Loop(3, 1, 160, 16), Loop(6, 2, 64, 16), Loop(12, 1, 32, 16)),
    predicted=(Loop(1, 2, 128, 32), Loop(4, 2, 96, 24), Loop(8, 2, 64, 24)),
)
QUICK = Trial(
    seen=(Loop(1, 1, 24, 12), Loop(4, 1, 48, 12)),
    predicted=(Loop(1, 1, 40, 12), Loop(3, 1, 32, 10)),
)


def closed_loops(loops: Sequence[Loop], series: int = 0) -> list[Demand]:
    """One loop after the other: each begins when the first client of the one before has ended. Prompts of one series
    have nothing in common, nor with those of another."""
    demands: list[Demand] = []
    before: int | None = None
    for loop in loops:
        first = len(demands)
        for client in range(loop.clients):
            follows, at = before, _CLIENT_S * (client + 1)
            for _ in range(loop.rounds):
                place = len(demands)
                demands.append(Demand(at, ((_SERIES * series + place, loop.prompt),), loop.answer, follows))
                follows, at = place, _CLIENT_S
        before = first + loop.rounds - 1
    return demands


def validate_here(
    learning: Engine,
    serving: Engine,
    capacity: Capacity,
    trial: Trial,
    *,
    config: Config,
    run: RealRun = run_in_real_time,
    progress: Callable[[int], object] = lambda ended: None,
) -> dict[str, Any]:
    """By load, what compare() of simulate/fidelity.py tells; predicted, within_goal: how many medians of TTFT, TPOT and
    whole answers there are, and are good. learning, serving: two engines alike. progress is told how many requests more
    have ended."""
    loads = {
        loop.name: measure_fidelity(
            learning,
            serving,
            capacity,
            closed_loops([loop], series),
            closed_loops(trial.seen, series),
            config=config,
            rounds=trial.rounds,
            run=run,
            progress=progress,
        )
        for series, loop in enumerate(trial.predicted)
    }
    good = [found[metric]["p50"]["within_goal"] for found in loads.values() for metric in METRICS]
    return {"loads": loads, "predicted": len(good), "within_goal": sum(good)}

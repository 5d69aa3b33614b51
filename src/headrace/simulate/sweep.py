"""The same fleet at several loads: what comes of it when so many times as many come. A recorded load comes faster, a
drawn one is drawn anew at that rate or for that many users, since its pauses do not shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError
from headrace.simulate.asking import ask_load
from headrace.simulate.result import Result
from headrace.workload.demand import Demand
from headrace.workload.summary import summarize

_SHOWN = ("requests_per_s", "goodput", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "prefix_hit_rate", "utilization")


@dataclass(frozen=True, slots=True)
class Load:
    """What `headrace simulate` is asked to serve, by its flags."""

    trace: str | Path | None = None
    workload: str | None = None
    rate: float | None = None
    users: int | None = None
    requests: int | None = None
    replicas: int = 1
    seed: int = 0

    @property
    def unit(self) -> str:
        return "requests/s" if self.users is None else "users"

    def times(self, multiplier: float) -> tuple[Sequence[Demand], float, float]:
        """So many times this load: demands, by how much they come faster than they say, and how much is offered."""
        rate, users = self.rate, self.users
        if self.trace is not None:
            demands = self._ask(rate, users)
            return demands, multiplier, multiplier * (summarize(demands)["rate_per_s"] or 0.0)
        if users is not None:
            users = max(1, round(multiplier * users))
            return self._ask(rate, users), 1.0, users
        rate = multiplier * (float(self.replicas) if rate is None else rate)
        return self._ask(rate, None), 1.0, rate

    def _ask(self, rate: float | None, users: int | None) -> Sequence[Demand]:
        return ask_load(
            self.trace,
            self.workload,
            rate=rate,
            users=users,
            requests=self.requests,
            replicas=self.replicas,
            seed=self.seed,
        )


def sweep(
    load: Load, multipliers: Sequence[float], run: Callable[[Sequence[Demand], float], Result]
) -> Iterator[dict[str, Any]]:
    """run: serves demands that come so many times as fast. One point for each multiplier: multiplier, offered (in
    load.unit), and a result's main figures."""
    for multiplier in multipliers:
        demands, faster, offered = load.times(multiplier)
        found = run(demands, faster).to_dict()
        yield {"multiplier": multiplier, "offered": offered, **{name: found[name] for name in _SHOWN}}


def read_multipliers(given: str) -> list[float]:
    """Numbers above 0 by commas. Raises ConfigError."""
    try:
        multipliers = sorted(float(one) for one in given.split(","))
    except ValueError:
        multipliers = []
    if not multipliers or not all(0 < one < float("inf") for one in multipliers):
        raise ConfigError(f"sweep must be numbers above 0 by commas, as in 1,2,4, got {given!r}", field="sweep")
    return multipliers

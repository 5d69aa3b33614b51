"""The same fleet at several loads: what comes of it when so many times as many come."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.core.errors import ConfigError
from headrace.simulate.asking import Asked
from headrace.simulate.result import Result
from headrace.workload.demand import Demand

_SHOWN = ("requests_per_s", "goodput", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "prefix_hit_rate", "utilization")


def sweep(
    asked: Asked, multipliers: Sequence[float], run: Callable[[Sequence[Demand], float], Result]
) -> Iterator[dict[str, Any]]:
    """run: serves demands that come so many times as fast. One point for each multiplier: multiplier, offered (in
    asked.unit), and a result's main figures."""
    for multiplier in multipliers:
        demands, faster, offered = asked.times(multiplier)
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

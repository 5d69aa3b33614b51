"""Rates of a step's ops against what the machine does at best. It knows names, times and amounts of work; who runs
the step gives them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class OpRate:
    """All ops of one name in one step. Shares are of the machine's best; None where the op has no counted work."""

    time_ms: float = 0.0
    operations: int = 0
    bytes: int = 0

    def report(self, int8_per_s: float, read_bytes_per_s: float) -> dict[str, float]:
        seconds = self.time_ms / 1e3
        if not self.operations or seconds == 0.0:
            return {"time_ms": self.time_ms}
        return {
            "time_ms": self.time_ms,
            "gop_per_s": self.operations / seconds / 1e9,
            "of_int8_ceiling": self.operations / seconds / int8_per_s,
            "gb_per_s": self.bytes / seconds / 1e9,
            "of_read_ceiling": self.bytes / seconds / read_bytes_per_s,
        }


def least_times(profiles: Iterable[Sequence[tuple[str, int]]]) -> list[tuple[str, int]]:
    """Profiles of the same step, op by op: each op's least time in nanoseconds, since all that disturbs adds."""
    first, *others = profiles
    return [(name, min([ns, *(p[i][1] for p in others)])) for i, (name, ns) in enumerate(first)]


def op_rates(
    times: Sequence[tuple[str, int]], works: Mapping[str, Sequence[tuple[str, int, int]]]
) -> dict[str, OpRate]:
    """times: (op, nanoseconds) in the order they ran. works: for ops that count, by op and in the same order, what
    to call each in the report, its operations and the bytes it reads. Slowest first."""
    left = {name: iter(items) for name, items in works.items()}
    rates: dict[str, OpRate] = {}
    for name, ns in times:
        called, operations, read = next(left[name]) if name in left else (name, 0, 0)
        rate = rates.setdefault(called, OpRate())
        rate.time_ms += ns / 1e6
        rate.operations += operations
        rate.bytes += read
    return dict(sorted(rates.items(), key=lambda item: -item[1].time_ms))

"""Faults: what goes wrong in a simulation, and when. A replica dies and starts again with an empty cache, its requests
going on elsewhere from the tokens that they have; it freezes; or its steps are slow for a while.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import ConfigError

DIES, FREEZES, SLOW = "dies", "freezes", "slow"
_WRITTEN = re.compile(
    r"(?P<kind>[a-z]+):(?P<replica>\d{1,9})@(?P<at>[0-9.e]+)(?:\+(?P<lasts>[0-9.e]+))?(?:x(?P<factor>[0-9.e]+))?"
)
_FORMS = "dies:REPLICA@AT, freezes:REPLICA@AT+SECONDS or slow:REPLICA@AT+SECONDSxFACTOR"


@dataclass(frozen=True, slots=True)
class Fault:
    """at: seconds after the first arrival. lasts: seconds, of what passes by itself. factor: times as long that steps
    take."""

    kind: str
    replica: int
    at: float
    lasts: float = 0.0
    factor: float = 1.0


def read_faults(written: Sequence[str], replicas: int) -> list[Fault]:
    """Each as `dies:3@10`, `freezes:3@10+5` or `slow:3@10+60x4`. Raises ConfigError."""
    return [_read(one, replicas) for one in written]


def _read(written: str, replicas: int) -> Fault:
    match = _WRITTEN.fullmatch(written.strip())
    if match is None:
        raise ConfigError(f"fail must be written as {_FORMS}, got {written!r}", field="fail")
    kind, replica = match["kind"], int(match["replica"])
    passes, slows = match["lasts"] is not None, match["factor"] is not None
    if (kind, passes, slows) not in ((DIES, False, False), (FREEZES, True, False), (SLOW, True, True)):
        raise ConfigError(f"fail must be written as {_FORMS}, got {written!r}", field="fail")
    if replica >= replicas:
        raise ConfigError(f"fail names replica {replica}; there are 0 to {replicas - 1}", field="fail")
    at, lasts, factor = (_number(written, match[name] or "1") for name in ("at", "lasts", "factor"))
    if factor < 1:
        raise ConfigError(f"fail: slow steps take at least as long, got {factor:g} times in {written!r}", field="fail")
    return Fault(kind, replica, at, lasts if passes else 0.0, factor)


def _number(written: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise ConfigError(f"fail: {number} is no finite number of seconds or times in {written!r}", field="fail")
    return value

"""Faults: what goes wrong in a simulation, and when. A replica dies and starts again with an empty cache, its requests
going on elsewhere from the tokens that they have; it freezes; its steps are slow for a while; or a link is.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headrace.core.errors import ConfigError

DIES, FREEZES, SLOW, LINK = "dies", "freezes", "slow", "link"
_WRITTEN = re.compile(
    r"(?P<kind>[a-z]+):(?P<what>[a-z]+[0-9]*(?:\.[a-z]+)?|\d{1,9})@(?P<at>[0-9.e]+)(?:\+(?P<lasts>[0-9.e]+))?(?:x(?P<factor>[0-9.e]+))?"
)
_FORMS = (
    "dies:REPLICA@AT, freezes:REPLICA@AT+SECONDS, slow:REPLICA@AT+SECONDSxFACTOR or, between pools, "
    "link:NAME@AT+SECONDSxFACTOR"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """at: seconds after the first arrival. lasts: seconds, of what passes by itself. factor: times as long that steps
    take, or bytes on the link of this name or kind."""

    kind: str
    replica: int
    at: float
    lasts: float = 0.0
    factor: float = 1.0
    link: str = ""


def read_faults(written: Sequence[str], replicas: int, links: Collection[str] = ()) -> list[Fault]:
    """Each as `dies:3@10`, `freezes:3@10+5`, `slow:3@10+60x4` or `link:nic3@10+60x4`. links: their names and kinds.
    Raises ConfigError."""
    return [_read(one, replicas, links) for one in written]


def _read(written: str, replicas: int, links: Collection[str]) -> Fault:
    match = _WRITTEN.fullmatch(written.strip())
    if match is None:
        raise ConfigError(f"fail must be written as {_FORMS}, got {written!r}", field="fail")
    kind, what = match["kind"], match["what"]
    passes, slows = match["lasts"] is not None, match["factor"] is not None
    forms = ((DIES, False, False), (FREEZES, True, False), (SLOW, True, True), (LINK, True, True))
    if (kind, passes, slows) not in forms or what.isdigit() == (kind == LINK):
        raise ConfigError(f"fail must be written as {_FORMS}, got {written!r}", field="fail")
    if kind == LINK and what not in links:
        kinds = ", ".join(name for name in links if name.isalpha())
        known = f"there are {kinds}, each with its number (nic3) or all of them" if kinds else "only pools have links"
        raise ConfigError(f"fail names link {what!r}; {known}", field="fail")
    replica = 0 if kind == LINK else int(what)
    if replica >= replicas:
        raise ConfigError(f"fail names replica {replica}; there are 0 to {replicas - 1}", field="fail")
    at, lasts, factor = (_number(written, match[name] or "1") for name in ("at", "lasts", "factor"))
    if factor < 1:
        raise ConfigError(f"fail: FACTOR must be at least 1, times as long as without it, got {factor:g}", field="fail")
    return Fault(kind, replica, at, lasts if passes else 0.0, factor, what if kind == LINK else "")


def _number(written: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise ConfigError(f"fail: {number} is no finite number of seconds or times in {written!r}", field="fail")
    return value

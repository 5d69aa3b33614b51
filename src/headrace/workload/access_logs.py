"""Requests out of access logs: JSON lines, each with when a request came and how many tokens it had, as our own server
writes them, or answers of an OpenAI API with their usage. Of a line, nothing but times, lengths and tenant is kept;
lines that tell of no answer are counted by why.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.errors import ConfigError
from headrace.workload.demand import ANSWER, Demand
from headrace.workload.rows import Row, read_lines

_PROMPT = ("prompt_tokens", "input_tokens", "input_len", "input_length")
_OUTPUT = ("completion_tokens", "output_tokens", "output_len", "output_length")
_TIME = ("time", "timestamp", "created", "created_at", "at", "ts")
_DURATION_MS = ("ms", "duration_ms", "latency_ms", "e2e_ms")
_MILLISECONDS = 1e11
"""A number above it cannot be seconds since 1970."""

LOG_FIELDS = (
    "time, prompt_tokens and completion_tokens (or usage with both), and ms, tenant and status if they are there"
)


def read_log(path: Path, progress: Callable[[int], object] = lambda lines: None) -> tuple[list[Demand], Counter[str]]:
    """Answered requests in order of their arrival, the first at 0 s, and how many lines were left out for what reason.
    Raises ConfigError if no line tells of an answer."""
    found: list[_Answered] = []
    left_out: Counter[str] = Counter()
    for number, text in read_lines(path):
        if text.strip():
            answered = _answered(path, number, text)
            if isinstance(answered, str):
                left_out[answered] += 1
            else:
                found.append(answered)
        progress(number)
    if not found:
        reasons = ", ".join(f"{count} lines {why}" for why, count in left_out.items()) or "it is empty"
        raise ConfigError(f"{path} has no answered requests ({reasons}); a line needs {LOG_FIELDS}", field="trace")
    found.sort(key=lambda one: one.at)
    demands = [
        Demand(one.at - found[0].at, ((ANSWER - 1 - place, one.input_len),), one.output_len, tenant=one.tenant)
        for place, one in enumerate(found)
    ]
    return demands, left_out


class _Answered(NamedTuple):
    at: float
    input_len: int
    output_len: int
    tenant: str


def _answered(path: Path, number: int, text: str) -> _Answered | str:
    """What a line tells, or why it tells nothing. Before its JSON a logger may have put something of its own."""
    begin = text.find("{")
    try:
        values: Any = json.loads(text[begin:]) if begin >= 0 else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return "are no JSON objects"
    usage = values.get("usage")
    row = Row(path, number, {**values, **usage} if isinstance(usage, dict) else values, is_json=True)
    prompt, output, time = (_column(row, names) for names in (_PROMPT, _OUTPUT, _TIME))
    status = values.get("status", 200)
    if prompt is None or output is None:
        return "have no token counts"
    if time is None:
        return "have no time"
    if not (isinstance(status, int) and 200 <= status < 300):
        return "are no success"
    if not (output_len := row.count(output, 0)):
        return "generated nothing"
    noted = row.values[time]
    in_ms = isinstance(noted, int | float) and noted > _MILLISECONDS
    # A log's line is written when a request ends; it came so long before.
    took = row.seconds(duration, 1e-3) if (duration := _column(row, _DURATION_MS)) else 0.0
    tenant = values.get("tenant")
    at = row.seconds(time, 1e-3 if in_ms else 1.0) - took
    return _Answered(at, row.count(prompt, 1), output_len, tenant if isinstance(tenant, str) else "")


def _column(row: Row, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if row.values.get(name) is not None), None)

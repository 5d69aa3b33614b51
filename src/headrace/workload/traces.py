"""Recorded workloads, read and written: Mooncake's JSON lines, the CSV files of Azure and BurstGPT, and a CSV of times
and lengths, which `headrace trace import` makes. A trace holds no texts; where it names a prompt's blocks or its
session, equal contents get equal names, so that what a prefix cache could share is known.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import TextIO

from headrace.core.errors import ConfigError, shown
from headrace.core.priority import DEFAULT_PRIORITY, PRIORITY_LIMIT, PRIORITY_NAMES
from headrace.workload.demand import ANSWER, Demand, Part
from headrace.workload.rows import Row, read_rows

HASHED = 512
"""Tokens that one of Mooncake's hash_ids stands for."""
_MOST_HASH = 2**53
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class _Format:
    """Where a format keeps what; of several names of a column the first that is there counts. unit: seconds of one in
    `at`. zero_failed: who generated nothing had failed, and is left out."""

    name: str
    at: tuple[str, ...]
    input_len: tuple[str, ...]
    output_len: tuple[str, ...]
    unit: float = 1.0
    hashes: str = ""
    session: str = ""
    tenant: str = ""
    priority: str = ""
    is_json: bool = False
    zero_failed: bool = False

    def missing(self, columns: Iterable[str]) -> list[str]:
        there = set(columns)
        return ["|".join(names) for names in (self.at, self.input_len, self.output_len) if there.isdisjoint(names)]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join('|'.join(names) for names in (self.at, self.input_len, self.output_len))})"


MOONCAKE = _Format(
    "Mooncake's JSON lines",
    ("timestamp",),
    ("input_length",),
    ("output_length",),
    unit=1e-3,
    hashes="hash_ids",
    is_json=True,
)
AZURE = _Format("Azure's CSV", ("TIMESTAMP",), ("ContextTokens",), ("GeneratedTokens",))
BURSTGPT = _Format(
    "BurstGPT's CSV",
    ("Timestamp",),
    ("Request tokens",),
    ("Response tokens",),
    session="Session ID",
    zero_failed=True,
)
LENGTHS = _Format(
    "CSV of times and lengths",
    ("at", "timestamp"),
    ("input_len", "prompt_tokens"),
    ("output_len", "completion_tokens"),
    session="session",
    tenant="tenant",
    priority="priority",
)
FORMATS = (MOONCAKE, AZURE, BURSTGPT, LENGTHS)


@dataclass(frozen=True, slots=True)
class _Recorded:
    at: float
    input_len: int
    output_len: int
    hashes: tuple[int, ...]
    session: str
    tenant: str
    priority: int


def read_trace(path: Path, limit: int | None = None) -> list[Demand]:
    """The first requests of a file, in order of time, the earliest at 0 s. An answer of no tokens counts as one of one.
    Raises ConfigError, which names file, line and column."""
    rows = read_rows(path)
    first = next(rows, None)
    found = [] if first is None else list(islice(_recorded(chain([first], rows), _format_of(first)), limit))
    if not found:
        raise ConfigError(f"trace {path} has no requests", field="trace")
    return _demands(sorted(found, key=lambda one: one.at))


def write_trace(demands: Sequence[Demand], file: TextIO) -> None:
    """The CSV of times and lengths. What prompts share is not in it."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["at", "input_len", "output_len", "tenant", "priority"])
    for one in demands:
        table.writerow([f"{one.at:.6f}", one.input_len, one.output_len, one.tenant, one.priority])


def _format_of(row: Row) -> _Format:
    possible = [one for one in FORMATS if one.is_json == row.is_json]
    nearest = min(possible, key=lambda one: len(one.missing(row.values)))
    if missing := nearest.missing(row.values):
        lacks = "no format's" if len(missing) == 3 else f"without {', '.join(missing)}"
        raise ConfigError(
            f"{row.path}: its columns ({shown(', '.join(row.values))}) are {lacks}. "
            f"A trace is {', '.join(map(str, FORMATS))}",
            field="trace",
        )
    return nearest


def _recorded(rows: Iterable[Row], form: _Format) -> Iterator[_Recorded]:
    columns: list[str] = []
    for row in rows:
        if row.is_json or not columns:
            columns = [
                next((name for name in names if name in row.values), names[0])
                for names in (form.at, form.input_len, form.output_len)
            ]
        at, input_len, output_len = columns
        output = row.count(output_len, 0)
        if form.zero_failed and not output:
            continue
        length = row.count(input_len, 1)
        yield _Recorded(
            row.seconds(at, form.unit),
            length,
            max(1, output),
            _hashes(row, form.hashes, length) if form.hashes and row.values.get(form.hashes) else (),
            row.values.get(form.session, "") if form.session else "",
            _tenant(row, form.tenant) if form.tenant and row.values.get(form.tenant) else "",
            _priority(row, form.priority) if form.priority and row.values.get(form.priority) else DEFAULT_PRIORITY,
        )


def _hashes(row: Row, column: str, input_len: int) -> tuple[int, ...]:
    given = row.values[column]
    if not isinstance(given, list) or not all(type(one) is int and 0 <= one < _MOST_HASH for one in given):
        raise row.refusal(column, f"a list of whole numbers from 0 to {_MOST_HASH - 1}")
    if len(given) != -(-input_len // HASHED):
        raise ConfigError(
            f"{row.path}, line {row.line}: {len(given)} {column} for {input_len} tokens; "
            f"one for each {HASHED} is needed",
            field="trace",
        )
    return tuple(given)


def _tenant(row: Row, column: str) -> str:
    tenant: str = row.values[column]
    if len(tenant) > _LONGEST_NAME:
        raise row.refusal(column, f"at most {_LONGEST_NAME} characters")
    return tenant


def _priority(row: Row, column: str) -> int:
    if (named := PRIORITY_NAMES.get(row.values[column])) is not None:
        return named
    try:
        return row.count(column, -PRIORITY_LIMIT, PRIORITY_LIMIT - 1)
    except ConfigError:
        allowed = f"a whole number from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT - 1}, or {', '.join(PRIORITY_NAMES)}"
        raise row.refusal(column, allowed) from None


def _demands(ordered: Sequence[_Recorded]) -> list[Demand]:
    """Prompts that no hash names get names below ANSWER, a new one for each text that is new. In a session a prompt
    begins with the one before and its answer, if it is long enough to hold both."""
    fresh = count(ANSWER - 1, -1)
    so_far: dict[str, tuple[Part, ...]] = {}
    demands = []
    for one in ordered:
        if one.hashes:
            rest = one.input_len - HASHED * (len(one.hashes) - 1)
            prompt = (*((name, HASHED) for name in one.hashes[:-1]), (one.hashes[-1], rest))
        else:
            earlier = so_far.get(one.session, ()) if one.session else ()
            new = one.input_len - sum(length for _, length in earlier)
            prompt = earlier if new >= 0 else ()
            if new := one.input_len - sum(length for _, length in prompt):
                prompt += ((next(fresh), new),)
            if one.session:
                so_far[one.session] = (*prompt, (next(fresh), one.output_len))
        demands.append(Demand(one.at - ordered[0].at, prompt, one.output_len, tenant=one.tenant, priority=one.priority))
    return demands

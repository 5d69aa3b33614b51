"""Rows of a trace or a log: JSON lines or CSV, gzipped or not, told apart by what the file holds and never by its name.
A row knows where it stands, so that whatever is wrong with a value is said with file, line, column and what is allowed.
Nothing a file holds can do worse than a ConfigError: lines have a longest length, numbers a largest value.
"""

import csv
import gzip
import json
import math
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError, shown

LONGEST_LINE = 2**22
LONGEST_TEXT = 2**24
"""Most tokens that a prompt or an output is believed to have."""
LATEST = 1e11
"""Seconds. Times since 1970 are below it; in milliseconds they are not, and so are found out."""

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Row:
    """values: by column; texts in CSV, whatever JSON has otherwise. line: counted from 1."""

    path: Path
    line: int
    values: Mapping[str, Any]
    is_json: bool

    def refusal(self, column: str, allowed: str) -> ConfigError:
        """The error that says that a column has not what it must have."""
        has = f"is {shown(self.values[column])}" if self.values.get(column) is not None else "is missing"
        return ConfigError(f"{self.path}, line {self.line}: {column!r} {has}; it must be {allowed}", field="trace")

    def number(self, column: str, least: float, most: float, allowed: str) -> float:
        value = self.values.get(column)
        try:
            found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not least <= found <= most:
            raise self.refusal(column, allowed)
        return found

    def count(self, column: str, least: int, most: int = LONGEST_TEXT) -> int:
        """A whole number from least to most."""
        allowed = f"a whole number from {least} to {most}"
        found = self.number(column, least, most, allowed)
        if not found.is_integer():
            raise self.refusal(column, allowed)
        return int(found)

    def seconds(self, column: str, unit: float = 1.0) -> float:
        """A time in units of so many seconds, or a date (in UTC, if it names no zone)."""
        value = self.values.get(column)
        allowed = f"a time from 0 to {LATEST / unit:g}" + (" s or a date" if unit == 1 else " ms")
        if unit == 1 and isinstance(value, str):
            try:
                date = datetime.fromisoformat(value)
                return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                pass
        return self.number(column, 0.0, LATEST / unit, allowed) * unit


def read_rows(path: Path) -> Iterator[Row]:
    """Every row of a file, in its order. Raises ConfigError, also while it is iterated."""
    with closing(read_lines(path)) as lines:
        first = next((given for given in lines if given[1].strip()), None)
        if first is None:
            return
        reads = _json_rows if first[1].lstrip().startswith(("{", "[")) else _csv_rows
        yield from reads(path, _again(first, lines))


def read_lines(path: Path) -> Generator[tuple[int, str], None, None]:
    """Lines and their numbers."""
    number = 1
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP else raw
            while line := stream.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise ConfigError(f"{path}, line {number} is longer than {LONGEST_LINE} bytes", field="trace")
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
                number += 1
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}, line {number}: no text; a trace is JSON lines or CSV in UTF-8", field="trace"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read from line {number} on: {error}", field="trace") from error


def _again(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _json_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Row]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number} is no JSON ({error}); is it whole?", field="trace") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}, line {number} is {shown(values)}; it must be a JSON object", field="trace")
        yield Row(path, number, values, is_json=True)


def _csv_rows(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    start = 1

    def texts() -> Iterator[str]:
        nonlocal start
        for number, text in lines:
            start = number
            yield text

    table = csv.reader(texts(), strict=True)
    columns: list[str] = []
    try:
        for cells in table:
            if not columns:
                columns = [cell.strip() for cell in cells]
            elif len(cells) == len(columns):
                yield Row(path, start, dict(zip(columns, map(str.strip, cells), strict=True)), is_json=False)
            elif cells:
                raise ConfigError(
                    f"{path}, line {start} has {len(cells)} columns; it must have {len(columns)}, as line 1 has "
                    f"({shown(', '.join(columns))}); is it whole?",
                    field="trace",
                )
    except csv.Error as error:
        raise ConfigError(f"{path}, line {start}: {error}", field="trace") from error

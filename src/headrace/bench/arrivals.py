"""What a load sends and when: requests at random times (Poisson, or burstier), all at once, or as they were recorded.
Prompts are words that most vocabularies have as one token each; where a trace names the content of a prompt's blocks,
equal names make equal words, so that prefixes are shared as they were. The same seed makes the same load.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from headrace.bench.replay import HASHED
from headrace.core.errors import ConfigError

_TEXT = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what
all were we when your can said there use an each which she do how their if will up other about out many then them these
so some her would make like him into time has look two more write go see number no way could people my
"""
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Planned:
    """at: seconds after the beginning."""

    at: float
    prompt: str
    output_len: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a trace. blocks: names of the contents of each 512 tokens of its prompt, where they are known."""

    at: float
    input_len: int
    output_len: int
    blocks: tuple[int, ...] = ()


def random_load(
    count: int, *, input_len: int, output_len: int, prefix_len: int, rate: float, burstiness: float, seed: int
) -> list[Planned]:
    """rate: requests a second on average, infinity for all at once. burstiness: shape of the gaps' gamma distribution;
    1 is Poisson, below 1 burstier. prefix_len: words that all prompts begin with, beside input_len of their own."""
    draw = random.Random(seed)
    prefix = _words(prefix_len, draw)
    at, planned = 0.0, []
    for _ in range(count):
        planned.append(Planned(at, " ".join(prefix + _words(input_len, draw)), output_len))
        if rate != float("inf"):
            at += draw.gammavariate(burstiness, 1 / (rate * burstiness))
    return planned


def recorded_load(trace: Sequence[Recorded], *, speed: float, scale: int, seed: int) -> list[Planned]:
    """speed: how many times faster than recorded. scale: lengths are divided by it."""
    draw = random.Random(seed)
    return [
        Planned(
            (one.at - trace[0].at) / speed,
            " ".join(_named_words(one, scale) if one.blocks else _words(-(-one.input_len // scale), draw)),
            max(1, one.output_len // scale),
        )
        for one in trace
    ]


def read_trace(path: Path, limit: int | None = None) -> list[Recorded]:
    """The first requests of Mooncake's JSON lines or Azure's CSV (.gz too), in order of time. Raises ConfigError."""
    reads = _azure if ".csv" in path.suffixes else _mooncake
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            recorded = list(islice(reads(lines), limit))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"trace {path} cannot be read: {error!r}", field="trace") from error
    if not recorded:
        raise ConfigError(f"trace {path} has no requests", field="trace")
    return sorted(recorded, key=lambda one: one.at)


def _mooncake(lines: Iterable[str]) -> Iterator[Recorded]:
    for line in lines:
        row: dict[str, Any] = json.loads(line)
        yield Recorded(
            row["timestamp"] / 1e3,
            int(row["input_length"]),
            int(row["output_length"]),
            tuple(map(int, row.get("hash_ids", ()))),
        )


def _azure(lines: Iterable[str]) -> Iterator[Recorded]:
    for row in csv.DictReader(lines):
        # Seconds have seven digits, one more than Python reads.
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        yield Recorded(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _named_words(one: Recorded, scale: int) -> list[str]:
    size = max(1, HASHED // scale)
    words = [word for name in one.blocks for word in _words(size, random.Random(name))]
    return words[: max(1, -(-one.input_len // scale))]


def _words(count: int, draw: random.Random) -> list[str]:
    return draw.choices(_WORDS, k=count)

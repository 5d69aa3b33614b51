"""Measured serving runs from a CSV file, one a row: isl, osl, batch_size (clients at once), tp_size, precision (empty
is bf16), the model as model_path or model, the hardware as system or gpu, milliseconds as silicon_ttft_ms and
silicon_tpot_ms, or without the silicon_; where they are there, pp_size and backend. A row that cannot be predicted is
named with the reason.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError, ModelError
from headrace.core.hardware import Hardware, known_hardware
from headrace.core.model_spec import ModelSpec
from headrace.models.published import published_model
from headrace.plan.closed_loop import Latency, Load, Terms, clients_held
from headrace.policy.roofline import Roofline, Serving

_PRECISIONS = {"": "bf16", "fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "fp8_block": "fp8", "nvfp4": "fp4"}
_COLUMNS: dict[str, tuple[str, ...]] = {
    "isl": ("isl",),
    "osl": ("osl",),
    "clients": ("batch_size", "concurrency"),
    "ranks": ("tp_size", "tp"),
    "model": ("model_path", "model"),
    "gpu": ("system", "gpu"),
    "ttft": ("silicon_ttft_ms", "ttft_ms"),
    "tpot": ("silicon_tpot_ms", "tpot_ms"),
}
_PIPELINE = "pp_size"
_MOST = 10**9  # of anything counted
_TIMES = (1e-6, 1e9)  # ms


@dataclass(frozen=True, slots=True)
class Run:
    """line: of the file. held: clients that the cache holds at once with whole sequences; past the capacity cliff they
    are fewer than the load's, and `running` of them run."""

    line: int
    model: str
    backend: str
    load: Load
    serving: Serving
    prior: Roofline
    terms: Terms
    held: int
    running: int
    measured: Latency

    @property
    def past_capacity(self) -> bool:
        return self.load.clients > self.held

    @property
    def group(self) -> str:
        return f"{self.model} {self.serving.hardware.name} {self.backend}".strip()


def read_runs(
    path: Path, find_hardware: Callable[[str], Hardware] = known_hardware
) -> tuple[list[Run], dict[int, str]]:
    """The runs of a file, and by line why others are left out. ConfigError where a column is missing or no file is."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        table = csv.DictReader(io.StringIO(text, newline=""))
        names = _names(path, table.fieldnames or ())
        rows = [(table.line_num, row) for row in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as CSV: {error}") from None
    runs, skipped = [], dict[int, str]()
    for line, row in rows:
        try:
            runs.append(_run(line, row, names, find_hardware))
        except (ConfigError, ModelError) as error:
            skipped[line] = str(error)
    return runs, skipped


def _names(path: Path, present: object) -> dict[str, str]:
    """By what we call it, the file's name of each column."""
    columns = tuple(present) if isinstance(present, list | tuple) else ()
    found = {}
    for ours, theirs in _COLUMNS.items():
        name = next((n for n in theirs if n in columns), None)
        if name is None:
            raise ConfigError(f"{path} has no column {' or '.join(theirs)}; it has {', '.join(columns) or 'none'}")
        found[ours] = name
    return found


def _run(
    line: int, row: Mapping[str, str | None], names: dict[str, str], find_hardware: Callable[[str], Hardware]
) -> Run:
    def number(column: str, value: str | None, least: float, most: float) -> float:
        try:
            found = float(value or "")
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            raise ConfigError(f"{column} must be a number from {least:g} to {most:g}, got {value!r}")
        return found

    def count(name: str) -> int:
        column = names.get(name, _PIPELINE)
        found = number(column, row.get(column) or ("1" if name == "stages" else ""), 1, _MOST)
        if not found.is_integer():
            raise ConfigError(f"{column} must be a whole number, got {row[column]!r}")
        return int(found)

    def seconds(name: str) -> float:
        return number(names[name], row[names[name]], *_TIMES) / 1e3

    given = (row.get("precision") or "").strip().lower()
    weights = _PRECISIONS.get(given, given)
    model, gpu = row[names["model"]] or "", row[names["gpu"]] or ""
    spec = published_model(model)
    # Servers of 8-bit checkpoints keep keys and values in 8 bits too: measured runs fit no more than that.
    cache = "fp8" if weights in ("fp8", "fp4") else "bf16"
    serving = Serving(find_hardware(gpu), count("ranks"), weights, cache, count("stages"))
    load = Load(count("clients"), count("isl"), count("osl"))
    measured = Latency(seconds("ttft"), seconds("tpot"))
    return _predictable(line, model, row.get("backend") or "", spec, serving, load, measured)


def _predictable(
    line: int, model: str, backend: str, spec: ModelSpec, serving: Serving, load: Load, measured: Latency
) -> Run:
    prior = Roofline(spec, serving)
    held, running = clients_held(spec, serving, load)
    if running < 1:
        raise ConfigError(f"the cache holds no sequence of {load.prompt + load.answer} tokens")
    return Run(line, model, backend, load, serving, prior, Terms.of(prior, load), held, running, measured)

"""Tables of measured kernels, as ai-dynamo/aiconfigurator publishes them (Parquet, one folder for each GPU), and how
far the curves of policy/fitted_kernels.py are from them. Reading Parquet needs pyarrow, which is no dependency.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware, known_hardware
from headrace.policy.fitted_kernels import kernels_of

Mask = npt.NDArray[np.bool_]
Table = dict[str, npt.NDArray[Any]]

GPUS = ("a100", "h100", "h200")
_MOST_ROWS = 4000


def read_table(folder: Path, name: str, keep: Callable[[Table], Mask]) -> Table:
    """At most 4,000 of the rows to keep, evenly taken. ConfigError where there is no such table, or no pyarrow."""
    file = folder / f"{name}_perf.parquet"
    try:
        import pyarrow.parquet as parquet  # noqa: PLC0415  not a dependency
    except ImportError:
        raise ConfigError(f"reading {file} needs the package pyarrow, which is not installed") from None
    try:
        table = parquet.read_table(file).to_pydict()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as Parquet: {error}") from None
    columns = {column: np.array(values) for column, values in table.items()}
    rows = np.flatnonzero(keep(columns) & (columns["latency"] > 0))
    rows = rows[:: max(1, len(rows) // _MOST_ROWS)]
    return {column: values[rows] for column, values in columns.items()}


def matrices(folder: Path, dtype: str) -> Table:
    """Products with rows as a step has them: few, or padded. One row more than a multiple costs up to twice as much."""

    def keep(t: Table) -> Mask:
        sizes = ((t["m"] <= 16) | (t["m"] % 16 == 0)) & (t["m"] <= 8192) & (t["n"] * t["k"] >= 4e6)
        found: Mask = sizes & (t["gemm_dtype"] == ("bfloat16" if dtype == "bf16" else dtype))
        return found

    return read_table(folder, "gemm", keep)


def prompts(folder: Path) -> Table:
    return read_table(folder, "context_attention", lambda t: _plain(t, "bfloat16") & _between(t["isl"], 64, 16384))


def decodes(folder: Path, cache: str = "bfloat16") -> Table:
    return read_table(folder, "generation_attention", lambda t: _plain(t, cache) & _between(t["step"], 127, 32768))


def all_reduces(folder: Path) -> Table:
    return read_table(folder, "custom_allreduce", lambda t: t["backend"] == "vllm_graph")


def _plain(t: Table, cache: str) -> Mask:
    """Without windows, heads of 128, grouped queries, kept in this dtype."""
    full = t["window_size"] == 0 if "window_size" in t else np.ones(len(t["latency"]), bool)
    kept = (t["kv_cache_dtype"] == cache) & (t["num_key_value_heads"] <= 8)
    found: Mask = full & kept & (t["head_dim"] == 128) & (t["num_heads"] >= 4)
    return found


def _between(values: npt.NDArray[Any], least: int, most: int) -> Mask:
    return (values >= least) & (values <= most)


def kernel_errors(folder: Path) -> dict[str, Any]:
    """By GPU and kind of kernel: rows, and median and 90th percentile of the absolute error in percent of what was
    measured. A kernel that runs alone also takes a few microseconds that a step hides; they are in the error."""
    report: dict[str, Any] = {}
    for gpu in GPUS:
        of_gpu = report[gpu] = {}
        for kind, pairs in _predictions(folder / gpu, known_hardware(gpu)):
            off = [100 * abs(said / (taken / 1e3) - 1) for said, taken in pairs]
            if off:
                of_gpu[kind] = {
                    "rows": len(off),
                    "median_ape": float(np.median(off)),
                    "p90_ape": float(np.percentile(off, 90)),
                }
    return report


def _predictions(folder: Path, gpu: Hardware) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Kinds of kernels, each with (seconds as predicted, milliseconds as measured)."""
    kernels, wide = kernels_of(gpu.name), gpu.peak("bf16")
    for dtype, _ in kernels.gemm:
        multiplier = kernels.multiplier(gpu, dtype)
        rows = _rows(matrices(folder, dtype), "m", "n", "k")
        yield f"gemm {dtype}", [(multiplier.seconds(m, n, k, gpu.bandwidth), taken) for m, n, k, taken in rows]
    rows = _rows(prompts(folder), "batch_size", "isl", "num_heads")
    yield (
        "prefill",
        [
            (kernels.prefill.seconds(batch * length**2 / 2, length / 2, heads * 256, wide), taken)
            for batch, length, heads, taken in rows
        ],
    )
    for dtype, cache, item in (("bf16", "bfloat16", 2), ("fp8", "fp8", 1)):
        rows = _rows(decodes(folder, cache), "batch_size", "step", "num_key_value_heads")
        yield (
            f"decode {dtype}",
            [
                (kernels.decode_of(dtype).seconds(batch * (step + 1) * heads * 256 * item, batch, gpu.bandwidth), taken)
                for batch, step, heads, taken in rows
            ],
        )
    rows = _rows(all_reduces(folder), "message_size", "num_gpus")
    yield "all-reduce", [(kernels.all_reduce.seconds(2 * size, ranks, gpu.link), taken) for size, ranks, taken in rows]


def _rows(table: Table, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Rows of these columns and the latency, as Python's numbers: products of the table's own overflow."""
    return zip(*(table[column].tolist() for column in (*columns, "latency")), strict=True)

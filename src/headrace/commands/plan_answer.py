"""How `headrace plan` prints an answer: what it comes to, its pools, memory, networks, what was simulated, the
candidates, and what to know.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import click

from headrace.commands.plan_tables import show_table
from headrace.commands.report import Report, show

_TOLD = ("pools", "per_gpu_bytes", "simulation", "notes", "candidates", "interval_because")


def show_plan(report: Report) -> None:
    show({name: value for name, value in report.items() if name not in _TOLD}, None)
    click.echo(f"\nWhy the interval: {report['interval_because']}.\n")
    _show_columns(
        "pool",
        {pool["does"]: {name: value for name, value in pool.items() if name != "does"} for pool in report["pools"]},
    )
    told = report["simulation"]
    if told is not None:
        click.echo(
            f"\nSimulated: {told['candidates_tried']} candidates, {told['candidates_dropped']} of them dropped; "
            f"{told['cut']} ({told['error_of_the_cut']:.1%})."
        )
        cells = {
            f"{kind.replace('_', ' ')} {index + 1}": seen
            for kind in ("at_capacity", "at_the_load", "at_the_load_in_smaller_cells")
            for index, seen in enumerate(told[kind])
        }
        if together := told.get("pools_together"):
            cells["pools together"] = {name: value for name, value in together.items() if name != "keeps_times"}
        if cells:
            _show_columns("cell", cells)
    click.echo("\nCandidates, the chosen one first; times are those at their capacity:")
    show_table(_candidates(report["candidates"]))
    for note in report["notes"]:
        click.echo(f"- {note}")


def _show_columns(name: str, columns: Mapping[str, Mapping[str, Any]]) -> None:
    """A table whose columns are things and whose rows are what is known of each."""
    flat = {title: dict(_flat(values)) for title, values in columns.items()}
    names = list(dict.fromkeys(key for values in flat.values() for key in values))
    show_table([(name, *flat), *((key, *(values.get(key, "-") for values in flat.values())) for key in names)])


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, float):
            yield f"{prefix}{key}", f"{value:,.3f}" if value < 10 else f"{value:,.1f}"
        else:
            yield f"{prefix}{key}", f"{value:,}" if isinstance(value, int) else str(value)


def _candidates(candidates: Iterable[Report]) -> list[tuple[str, ...]]:
    head = (
        "gpu",
        "pools",
        "cut",
        "weights",
        "KV",
        "chunk",
        "drafts",
        "gpus",
        "USD/h",
        "USD/M",
        "TTFT",
        "TPOT",
        "binds",
    )
    rows: list[tuple[str, ...]] = [(*head, "simulated")]
    for one in candidates:
        rows.append(
            (
                one["gpu"],
                one["pools"],
                " + ".join(one["parallel"]),
                one["weights"],
                one["kv_cache_dtype"],
                f"{one['max_num_batched_tokens']}",
                f"{one['num_speculative_tokens']}",
                f"{one['gpus']:,}",
                f"{one['cost_per_hour_usd']:,.2f}",
                f"{one['cost_per_million_output_tokens_usd']:.3f}",
                f"{one['ttft_ms']:,.0f} ms",
                f"{one['tpot_ms']:.1f} ms",
                one["binding_limit"],
                "yes" if one["simulated"] else "no",
            )
        )
    return rows

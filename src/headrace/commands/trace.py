"""headrace trace: what a recorded workload is like, and making one out of access logs."""

import sys
from pathlib import Path
from typing import Any

import click

from headrace.commands.report import EXISTING_FILE, NewFile, json_option, show, write_json
from headrace.core.errors import MachineError
from headrace.workload.access_logs import read_log
from headrace.workload.summary import summarize
from headrace.workload.traces import read_trace, write_trace


@click.group()
def trace() -> None:
    """Recorded workloads: Mooncake's JSON lines, CSV files of Azure and BurstGPT, or CSV of times and lengths."""


@trace.command("show")
@click.argument("file", type=EXISTING_FILE)
@click.option("--requests", type=click.IntRange(min=1), help="Only the first so many.")
@json_option
def show_trace(file: Path, requests: int | None, json_file: Path | None) -> None:
    """Requests, rate and bursts of a trace, how long its prompts and answers are, and what prompts share."""
    click.echo(f"reading {file}", err=True)
    show(summarize(read_trace(file, requests)), json_file)


@trace.command("import")
@click.argument("log", type=EXISTING_FILE)
@click.option("-o", "--output", type=NewFile(), required=True, help="The CSV to write; - for stdout.")
@json_option
def import_log(log: Path, output: Path, json_file: Path | None) -> None:
    """Make a CSV of times and lengths out of an access log of JSON lines, without any text.

    A line needs a time and token counts, as `headrace serve --access-log` writes them."""
    demands, left_out = read_log(log, _tell)
    if str(output) == "-":
        write_trace(demands, sys.stdout)
    else:
        try:
            with output.open("w", encoding="utf-8", newline="") as file:
                write_trace(demands, file)
        except OSError as error:
            raise MachineError(f"{output} cannot be written: {error}") from error
    report: dict[str, Any] = {"requests": len(demands), "left_out": dict(left_out)}
    for why, count in left_out.items():
        click.echo(f"left out: {count} lines that {why}", err=True)
    click.echo(f"{len(demands)} requests", err=True)
    write_json(report, json_file)


def _tell(lines: int) -> None:
    if lines % 100_000 == 0:
        click.echo(f"{lines:,} lines read", err=True)

"""headrace validate: how far the latency model is from measured serving runs, and refitting it to runs of your own."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import click

from headrace.commands.report import json_option, show, write_json
from headrace.core.hardware import Hardware, known_hardware
from headrace.ops.cpu_ceilings import measure_ceilings
from headrace.plan.calibration import calibrate
from headrace.plan.closed_loop import VLLM
from headrace.plan.runs import read_runs
from headrace.plan.validation import errors, held_out, predictions
from headrace.plan.validation import validate as validate_runs
from headrace.worker.machine import this_machine

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

_THIS = "this-machine"


@click.command()
@click.option(
    "--csv",
    "csv_file",
    type=_FILE,
    help="Runs to predict: columns isl, osl, batch_size (clients at once), tp_size, precision, model_path, system, "
    "backend, silicon_ttft_ms, silicon_tpot_ms.",
)
@click.option("--calibrate", "own", type=_FILE, help="Runs of your own, shaped alike, to refit the few numbers to.")
@json_option
def validate(csv_file: Path | None, own: Path | None, json_file: Path | None) -> int:
    """Predict every run of a file, and say how far predicted is from measured. Exit status 1 if none could be."""
    if csv_file is None and own is None:
        raise click.UsageError("give --csv FILE, --calibrate FILE or both")
    numbers, report = VLLM, dict[str, Any]()
    if own is not None:
        runs, left_out = read_runs(own, _find_hardware)
        numbers = calibrate(runs)
        inside = [run for run in runs if not run.past_capacity]
        report["calibration"] = {
            "numbers": dataclasses.asdict(numbers),
            "before": errors(inside),
            "after": errors(inside, numbers),
            "held_out": held_out(runs),
            "skipped": {f"line {line}": why for line, why in left_out.items()},
        }
    if csv_file is not None:
        runs, left_out = read_runs(csv_file, _find_hardware)
    report = {**validate_runs(runs, numbers), "skipped": {f"line {n}": why for n, why in left_out.items()}, **report}
    show(report, None)
    write_json({**report, "predictions": predictions(runs, numbers)}, json_file)
    return 0 if runs else 1


def _find_hardware(name: str) -> Hardware:
    return _measured() if name == _THIS else known_hardware(name)


@cache
def _measured() -> Hardware:
    """This machine by what it does at best, as `headrace doctor --measure` shows it. Takes a second."""
    machine = this_machine()
    return measure_ceilings(machine.threads).of(machine)

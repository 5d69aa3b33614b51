"""headrace validate: how far the latency model is from measured serving runs, refitting it to runs of your own, and how
far it is from kernels and from an engine on this machine.
"""

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click

from headrace.commands.report import EXISTING_FILE, counting, json_option, show, write_json
from headrace.core.config import DEFAULT_MODEL, Config
from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware, known_hardware
from headrace.launch import build_engine
from headrace.models.sources import locate_model
from headrace.ops.cpu_ceilings import measure_ceilings
from headrace.plan.calibration import calibrate
from headrace.plan.closed_loop import VLLM
from headrace.plan.kernel_tables import kernel_errors
from headrace.plan.own_engine import QUICK, WHOLE, Trial, validate_here
from headrace.plan.runs import read_runs
from headrace.plan.validation import errors, held_out, predictions
from headrace.plan.validation import validate as validate_runs
from headrace.worker.machine import this_machine

_THIS = "this-machine"
_SETTINGS: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_model_len": 512,
    "max_num_batched_tokens": 256,
    "step_ring": 10_000,
}


@click.command()
@click.option(
    "--csv",
    "csv_file",
    type=EXISTING_FILE,
    help="Runs to predict: columns isl, osl, batch_size (clients at once), tp_size, precision, model_path, system, "
    "backend, silicon_ttft_ms, silicon_tpot_ms.",
)
@click.option(
    "--calibrate", "own", type=EXISTING_FILE, help="Runs of your own, shaped alike, to refit the few numbers to."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="HEADRACE_DATA",
    help="Folder with gpu_timings, tables of measured kernels, for a run without --csv. [env: HEADRACE_DATA]",
)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="What to run here, without --csv.")
@click.option("--quick", is_flag=True, help="Fewer and shorter loads, without --csv: to see that it works.")
@json_option
def validate(
    csv_file: Path | None, own: Path | None, data: Path | None, model: str, quick: bool, json_file: Path | None
) -> int:
    """Predict every run of a file, and say how far predicted is from measured. Exit status 1 if none could be.

    Without a file: the kernels' curves against their tables, and a model that runs on this machine's processor against
    what was learnt from other loads of it, within the larger of a tenth and 1.5 times what real runs differ by."""
    if csv_file is None and own is None:
        located = locate_model(Config(model=model, **_SETTINGS).resolve())
        show({"kernels": _kernels(data), "own_engine": _own_engine(located, QUICK if quick else WHOLE)}, json_file)
        return 0
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


def _kernels(data: Path | None) -> Mapping[str, Any]:
    """Errors on the tables, or what to give."""
    if data is None:
        return {"skipped": "give --data FOLDER, or set HEADRACE_DATA, to a folder with gpu_timings/GPU/*_perf.parquet"}
    click.echo(f"kernels: reading {data / 'gpu_timings'}", err=True)
    try:
        return kernel_errors(data / "gpu_timings")
    except ConfigError as error:
        return {"skipped": str(error)}


def _own_engine(config: Config, trial: Trial) -> dict[str, Any]:
    """Two engines of the model, of which one learns and the other is predicted."""
    click.echo(f"own engine: loading {config.model} twice", err=True)
    learning, serving = (build_engine(config) for _ in range(2))
    with counting(trial.requests, "requests") as progress:
        return validate_here(
            learning.engine, serving.engine, serving.capacity, trial, config=serving.config, progress=progress
        )


def _find_hardware(name: str) -> Hardware:
    return _measured() if name == _THIS else known_hardware(name)


@cache
def _measured() -> Hardware:
    """This machine by what it does at best, as `headrace doctor --measure` shows it. Takes a second."""
    machine = this_machine()
    return measure_ceilings(machine.threads).of(machine)

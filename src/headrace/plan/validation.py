"""Predicted against measured: the errors of the latency model on runs, in all, by model, hardware and backend, with the
runs past the capacity cliff as a class of their own. Errors are absolute, in percent of what was measured.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.plan.calibration import calibrate
from headrace.plan.closed_loop import VLLM, Latency, Overheads, latency, queued_latency
from headrace.plan.runs import Run
from headrace.policy.fitted_kernels import measured

Errors = dict[str, Any]


def predict(run: Run, numbers: Overheads = VLLM) -> Latency:
    """What the model says of a run."""
    if run.past_capacity:
        return queued_latency(run.prior, run.load, run.running, numbers)
    return latency(run.terms, run.load, numbers)


def errors(runs: Sequence[Run], numbers: Overheads = VLLM) -> Errors:
    """Median and 90th percentile of the absolute errors in percent; None where there are no runs."""
    report: Errors = {"rows": len(runs)}
    for name in ("tpot", "ttft"):
        off = [100 * abs(getattr(predict(r, numbers), name) / getattr(r.measured, name) - 1) for r in runs]
        report[f"{name}_median_ape"] = float(np.median(off)) if off else None
        report[f"{name}_p90_ape"] = float(np.percentile(off, 90)) if off else None
    return report


def validate(runs: Sequence[Run], numbers: Overheads = VLLM) -> Errors:
    """Errors of runs whose clients the cache holds, by_group, and past_capacity for the others."""
    inside = [run for run in runs if not run.past_capacity]
    return {
        **errors(inside, numbers),
        "by_group": {name: errors(group, numbers) | _backed(group) for name, group in _groups(inside).items()},
        "past_capacity": errors([run for run in runs if run.past_capacity], numbers),
    }


def predictions(runs: Sequence[Run], numbers: Overheads = VLLM) -> list[dict[str, Any]]:
    """Every run beside what the model says of it."""
    found = []
    for run in runs:
        said = predict(run, numbers)
        found.append(
            {
                "line": run.line,
                "group": run.group,
                "isl": run.load.prompt,
                "osl": run.load.answer,
                "concurrency": run.load.clients,
                "tp_size": run.serving.ranks,
                "pp_size": run.serving.stages,
                "precision": str(run.serving.weights),
                "past_capacity": run.past_capacity,
                "ttft_ms": run.measured.ttft * 1e3,
                "predicted_ttft_ms": said.ttft * 1e3,
                "tpot_ms": run.measured.tpot * 1e3,
                "predicted_tpot_ms": said.tpot * 1e3,
            }
        )
    return found


def held_out(runs: Sequence[Run]) -> dict[str, Errors]:
    """Errors on each group of runs with numbers refitted to the other groups alone. How many prompts come together is
    not carried over: it tells of who asks, not of model, hardware or server."""
    groups = _groups([run for run in runs if not run.past_capacity])
    found = {}
    for name, group in groups.items():
        if len(groups) > 1:
            fitted = calibrate([run for run in runs if run.group != name])
            found[name] = errors(group, replace(fitted, together=VLLM.together))
    return found


def _groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups


def _backed(group: Sequence[Run]) -> dict[str, bool]:
    """Whether kernels were measured on the group's hardware, or are a guess from another's."""
    return {"kernels_measured": measured(group[0].serving.hardware.name)}

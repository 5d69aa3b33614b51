"""Predicted against measured: a file of runs, through the front door, and numbers refitted to runs."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.core.errors import ConfigError
from headrace.plan.calibration import calibrate
from headrace.plan.closed_loop import VLLM, latency
from headrace.plan.runs import read_runs
from headrace.plan.validation import errors, held_out, validate

SAMPLE = Path(os.environ.get("HEADRACE_DATA", "../shared/data")) / "gpu_timings" / "end_to_end_sample.csv"
COLUMNS = ("backend", "model_path", "system", "precision", "isl", "osl", "batch_size", "tp_size", "ttft_ms", "tpot_ms")
Row = dict[str, Any]


def row(**changes: Any) -> Row:
    values = ("vllm", "Qwen/Qwen3-32B", "h100_sxm", "", 1024, 512, 16, 2, 190.0, 18.0)
    return dict(zip(COLUMNS, values, strict=True)) | changes


def write(path: Path, rows: list[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def other_backend(path: Path, clients: tuple[int, ...]) -> Path:
    """Runs as a backend would have them whose host is slow and that begins no burst."""
    numbers = dataclasses.replace(VLLM, step=6e-3, request=1e-4, burst=0.0, wait=1.5)
    rows = [row(batch_size=n, tp_size=tp, isl=isl) for n in clients for tp in (2, 8) for isl in (512, 2048)]
    said = [latency(run.terms, run.load, numbers) for run in read_runs(write(path, rows))[0]]
    found = [r | {"ttft_ms": s.ttft * 1e3, "tpot_ms": s.tpot * 1e3} for r, s in zip(rows, said, strict=True)]
    return write(path, found)


def test_the_report_has_its_keys_and_every_row_is_somewhere(tmp_path: Path) -> None:
    rows = [
        row(),
        row(batch_size=128, isl=8192),  # its cache holds a third of them
        row(model_path="Qwen/Qwen3-33B"),
        row(system="h300"),
        row(tp_size=1, model_path="meta-llama/Llama-3.1-405B"),
        row(precision="fp7"),
        row(ttft_ms="n/a"),
    ]
    found = tmp_path / "report.json"
    assert cli.run(["validate", "--csv", str(write(tmp_path / "runs.csv", rows)), "--json", str(found)]) == 0
    report = json.loads(found.read_text())
    assert report["rows"] == 1 and report["past_capacity"]["rows"] == 1
    assert report["tpot_median_ape"] == report["tpot_p90_ape"] < 10
    assert 0 < report["ttft_median_ape"] == report["ttft_p90_ape"]
    assert list(report["by_group"]) == ["Qwen/Qwen3-32B h100 vllm"]
    assert [p["line"] for p in report["predictions"]] == [2, 3]
    reasons = report["skipped"]
    assert "nearest is qwen3-32b" in reasons["line 4"]
    assert "nearest is h" in reasons["line 5"]
    assert "do not fit into" in reasons["line 6"]
    assert "dtype must be one of" in reasons["line 7"]
    assert reasons["line 8"] == "ttft_ms must be a number from 1e-06 to 1e+09, got 'n/a'"


def test_past_the_capacity_cliff_a_first_token_waits_for_the_others_to_end(tmp_path: Path) -> None:
    rows = [row(batch_size=n, isl=4096) for n in (32, 128)]
    found = tmp_path / "report.json"
    cli.run(["validate", "--csv", str(write(tmp_path / "runs.csv", rows)), "--json", str(found)])
    inside, past = json.loads(found.read_text())["predictions"]
    assert not inside["past_capacity"] and past["past_capacity"]
    assert past["predicted_ttft_ms"] > 20 * inside["predicted_ttft_ms"]


def test_this_machine_is_measured(tmp_path: Path) -> None:
    small = row(
        model_path="SmolLM2-135M", system="this-machine", precision="int8", tp_size=1, batch_size=1, isl=32, osl=32
    )
    rows = [small, small | {"tp_size": 2}]
    found = tmp_path / "report.json"
    assert cli.run(["validate", "--csv", str(write(tmp_path / "runs.csv", rows)), "--json", str(found)]) == 0
    report = json.loads(found.read_text())
    (group,) = report["by_group"].values()
    assert group["rows"] == 1 and not group["kernels_measured"]
    assert "that one node joins, got 2" in report["skipped"]["line 3"]
    # Its weights are 135 MB, which no processor reads in less than a fifth of a millisecond.
    assert report["predictions"][0]["predicted_tpot_ms"] > 0.2


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    lacking = {name: value for name, value in row().items() if name != "isl"}
    with pytest.raises(ConfigError, match="has no column isl; it has backend"):
        read_runs(write(tmp_path / "runs.csv", [lacking]))


def test_calibration_finds_another_backend_from_few_runs_and_predicts_its_others(tmp_path: Path) -> None:
    few, _ = read_runs(other_backend(tmp_path / "few.csv", (4, 16, 64)))
    others, _ = read_runs(other_backend(tmp_path / "others.csv", (8, 32)))
    before, after = errors(others), errors(others, calibrate(few))
    assert before["tpot_median_ape"] > 15 and before["ttft_median_ape"] > 15
    assert after["tpot_median_ape"] < 3 and after["ttft_median_ape"] < 5


def test_calibration_tells_how_the_error_changed(tmp_path: Path) -> None:
    found = tmp_path / "report.json"
    runs = other_backend(tmp_path / "runs.csv", (4, 32))
    assert cli.run(["validate", "--calibrate", str(runs), "--json", str(found)]) == 0
    told = json.loads(found.read_text())["calibration"]
    assert told["after"]["tpot_median_ape"] < told["before"]["tpot_median_ape"]
    assert told["numbers"]["step"] > VLLM.step


def test_calibration_without_a_run_inside_capacity_is_refused(tmp_path: Path) -> None:
    runs, _ = read_runs(write(tmp_path / "runs.csv", [row(batch_size=256, isl=8192)]))
    with pytest.raises(ConfigError, match="no run to calibrate with"):
        calibrate(runs)


@pytest.mark.skipif(not SAMPLE.exists(), reason=f"{SAMPLE} is absent: set HEADRACE_DATA")
def test_measured_runs_of_vllm() -> None:
    runs, skipped = read_runs(SAMPLE)
    assert not skipped and len(runs) == 150
    report = validate(runs)
    assert report["rows"] == 143
    assert report["tpot_median_ape"] < 4 and report["ttft_median_ape"] < 15
    for group in held_out(runs).values():
        assert group["tpot_median_ape"] < 8 and group["ttft_median_ape"] < 20


@pytest.mark.skipif(not SAMPLE.exists(), reason=f"{SAMPLE} is absent: set HEADRACE_DATA")
def test_ten_measured_runs_of_a_client_predict_its_others() -> None:
    runs = [run for run in read_runs(SAMPLE)[0] if not run.past_capacity]
    for name in {run.group for run in runs}:
        own = [run for run in runs if run.group == name]
        ten = own[3 :: len(own) // 10][:10]
        found = errors([run for run in own if run not in ten], calibrate(ten))
        assert found["tpot_median_ape"] < 10 and found["ttft_median_ape"] < 15

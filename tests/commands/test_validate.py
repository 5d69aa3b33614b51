"""headrace validate through the front door: files as they come from elsewhere, pipelines, and what refitting tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import cli

HEADER = "backend,model_path,system,precision,isl,osl,batch_size,tp_size,pp_size,ttft_ms,tpot_ms"
GOOD = "vllm,Qwen/Qwen3-32B,h100_sxm,,1024,512,16,2,1,190.0,18.0"
FIELDS = HEADER.split(",")


def row(**changes: str) -> str:
    return ",".join((dict(zip(FIELDS, GOOD.split(","), strict=True)) | changes).values())


def report_of(folder: Path, content: bytes) -> dict[str, Any]:
    runs, report = folder / "runs.csv", folder / "report.json"
    runs.write_bytes(content)
    assert cli.run(["validate", "--csv", str(runs), "--json", str(report)]) == 0
    return json.loads(report.read_text())


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_of_any_editor_are_read(tmp_path: Path, mark: bytes, end: str) -> None:
    report = report_of(tmp_path, mark + end.join([HEADER, GOOD, ""]).encode())
    assert report["rows"] == 1 and report["skipped"] == {}
    assert {"tpot_median_ape", "tpot_p90_ape", "ttft_median_ape", "ttft_p90_ape", "by_group"} <= set(report)
    assert report["past_capacity"]["rows"] == 0 and report["past_capacity"]["ttft_median_ape"] is None


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("isl", "nan", "isl must be a number from 1 to 1e+09, got 'nan'"),
        ("osl", "-5", "osl must be a number from 1 to 1e+09, got '-5'"),
        ("batch_size", "1e308", "batch_size must be a number from 1 to 1e+09, got '1e308'"),
        ("batch_size", "2.5", "batch_size must be a whole number, got '2.5'"),
        ("tp_size", "", "tp_size must be a number from 1 to 1e+09, got ''"),
        ("ttft_ms", "inf", "ttft_ms must be a number from 1e-06 to 1e+09, got 'inf'"),
        ("tpot_ms", "0", "tpot_ms must be a number from 1e-06 to 1e+09, got '0'"),
        ("pp_size", "65", "pipeline parallel size must be 1 to 64, the model's layers, got 65"),
        ("precision", "int2", "dtype must be one of"),
        ("system", "", "gpu must be one of"),
        ("model_path", "", "model"),
    ],
)
def test_a_row_that_cannot_be_predicted_is_left_out_with_its_reason(
    tmp_path: Path, field: str, value: str, why: str
) -> None:
    report = report_of(tmp_path, "\n".join([HEADER, row(**{field: value}), GOOD]).encode())
    assert report["rows"] == 1
    assert list(report["skipped"]) == ["line 2"] and why in report["skipped"]["line 2"]


def test_a_torn_row_is_left_out(tmp_path: Path) -> None:
    report = report_of(tmp_path, "\n".join([HEADER, GOOD[:40], GOOD + ",more", GOOD]).encode())
    assert report["rows"] == 2 and list(report["skipped"]) == ["line 2"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "has no column isl; it has none"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "cannot be read as CSV"),
        (b"\x00\x00\x00", "no column isl"),
        (HEADER.replace("batch_size,", "").encode(), "has no column batch_size or concurrency"),
        (HEADER.encode() + b'\n"' + b"x" * 200_000, "cannot be read as CSV: field larger than"),
    ],
)
def test_a_file_that_is_no_table_of_runs_is_refused(
    tmp_path: Path, content: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_bytes(content)
    assert cli.run(["validate", "--csv", str(runs)]) == 2
    assert why in capsys.readouterr().err


def test_a_file_of_no_runs_ends_with_1(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text(HEADER + "\n")
    assert cli.run(["validate", "--csv", str(runs)]) == 1


def test_pipelines_are_predicted(tmp_path: Path) -> None:
    rows = [row(pp_size=stages, batch_size="1") for stages in ("", "1", "2", "4")]
    report = report_of(tmp_path, "\n".join([HEADER, *rows]).encode())
    absent, one, two, four = (p["predicted_tpot_ms"] for p in report["predictions"])
    # One request gains nothing from stages, and each hands it on.
    assert absent == one < two < four < 1.05 * one
    assert [p["pp_size"] for p in report["predictions"]] == [1, 1, 2, 4]


def test_a_pipeline_holds_more_clients(tmp_path: Path) -> None:
    rows = [row(pp_size=stages, batch_size="128", isl="8192") for stages in ("1", "4")]
    report = report_of(tmp_path, "\n".join([HEADER, *rows]).encode())
    assert [p["past_capacity"] for p in report["predictions"]] == [True, False]


def test_refitting_helps_the_runs_it_did_not_see(tmp_path: Path) -> None:
    def slow(isl: str, clients: str, tpot: float) -> str:
        return row(isl=isl, batch_size=clients, tpot_ms=str(tpot), ttft_ms="400")

    seen = [slow("512", "4", 24.0), slow("512", "16", 26.0), slow("512", "64", 33.0), slow("1024", "32", 30.0)]
    own, runs, found = tmp_path / "own.csv", tmp_path / "runs.csv", tmp_path / "report.json"
    own.write_text("\n".join([HEADER, *seen, row(isl="x")]))
    runs.write_text("\n".join([HEADER, slow("512", "32", 28.5)]))
    assert cli.run(["validate", "--csv", str(runs), "--json", str(found)]) == 0
    before = json.loads(found.read_text())
    assert cli.run(["validate", "--csv", str(runs), "--calibrate", str(own), "--json", str(found)]) == 0
    after = json.loads(found.read_text())
    assert after["tpot_median_ape"] < 5 < before["tpot_median_ape"]
    told = after["calibration"]
    assert told["after"]["tpot_median_ape"] < told["before"]["tpot_median_ape"]
    assert told["after"]["rows"] == 4 and list(told["skipped"]) == ["line 6"]


def test_without_a_file_a_model_that_runs_here_is_predicted(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    found = tmp_path / "report.json"
    assert cli.run(["validate", "--quick", "--model", str(default_model), "--json", str(found)]) == 0
    report = json.loads(found.read_text())
    assert "give --data FOLDER" in report["kernels"]["skipped"]
    own = report["own_engine"]
    assert list(own["loads"]) == ["1 x 40/12", "3 x 32/10"] and own["predicted"] == 6
    for load in own["loads"].values():
        for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
            assert load[metric]["p50"]["real"] > 0 and load[metric]["p50"]["simulated"] > 0
    said = capsys.readouterr()
    assert "own_engine.within_goal" in said.out and "loading" in said.err


def test_a_model_that_is_not_there_and_tables_that_are_not_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nowhere"
    assert cli.run(["validate", "--quick", "--data", str(tmp_path), "--model", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err

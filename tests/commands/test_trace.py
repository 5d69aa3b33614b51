"""headrace trace: a log becomes a CSV that every command reads, and a trace is described."""

from __future__ import annotations

import json

import pytest

from headrace import cli
from headrace.workload.traces import read_trace

LOG = [
    {
        "time": f"2026-11-30T04:00:{k:02}+00:00",
        "status": 200,
        "ms": 500,
        "prompt_tokens": 10 + k,
        "completion_tokens": 4,
    }
    for k in range(10)
]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "access.log"
    path.write_text("\n".join(map(json.dumps, [*LOG, {"status": 404}])) + "\n")
    return path


def test_a_log_becomes_a_trace(log, tmp_path, capsys):
    csv, report = tmp_path / "t.csv", tmp_path / "report.json"
    assert cli.run(["trace", "import", str(log), "-o", str(csv), "--json", str(report)]) == 0
    assert "1 lines that have no token counts" in capsys.readouterr().err
    assert json.loads(report.read_text()) == {"requests": 10, "left_out": {"have no token counts": 1}}
    assert [(one.at, one.input_len) for one in read_trace(csv)] == [(k, 10 + k) for k in range(10)]
    assert cli.run(["trace", "import", str(log), "-o", "-"]) == 0
    assert capsys.readouterr().out == csv.read_text()


def test_a_trace_is_described(log, tmp_path, capsys):
    csv, report = tmp_path / "t.csv", tmp_path / "report.json"
    assert cli.run(["trace", "import", str(log), "-o", str(csv)]) == 0
    assert cli.run(["trace", "show", str(csv), "--json", str(report)]) == 0
    assert "shared_prefix_share" in capsys.readouterr().out
    found = json.loads(report.read_text())
    assert (found["requests"], found["duration_s"], found["rate_per_s"], found["burstiness_cv"]) == (10, 9, 1, 0)
    assert found["input_len"]["p50"] == 14
    assert cli.run(["trace", "show", str(csv), "--requests", "3", "--json", str(report)]) == 0
    assert json.loads(report.read_text())["requests"] == 3


def test_mistakes_are_the_operators(log, tmp_path, capsys):
    assert cli.run(["trace", "show", str(log)]) == 2
    assert "Mooncake" in capsys.readouterr().err
    (tmp_path / "empty").write_text("")
    assert cli.run(["trace", "import", str(tmp_path / "empty"), "-o", str(tmp_path / "x")]) == 2
    assert cli.run(["trace", "import", str(log), "-o", str(tmp_path / "none" / "x.csv")]) == 2
    assert "there is no folder" in capsys.readouterr().err

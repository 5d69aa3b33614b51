"""A report prints every value once and writes the same values as JSON."""

from __future__ import annotations

import json

from headrace import cli
from headrace.commands.report import show

REPORT = {
    "output_tokens_per_s": 1234.5678,
    "requests": 32,
    "itl_ms": {"p50": 1.25, "p99": 4.0},
    "weights_bytes": 3 * 2**20,
    "block_bytes": [2**20, 2**19],
    "token_bytes": 23_040,
    "features": ["avx2", "fma"],
    "fits": True,
    "note": None,
}


def test_the_table_has_a_line_for_each_value(capsys):
    show(REPORT, None)
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["output_tokens_per_s", "1,234.6"],
        ["requests", "32"],
        ["itl_ms.p50", "1.250"],
        ["itl_ms.p99", "4.000"],
        ["weights_bytes", "3,145,728  (3.0 MiB)"],
        ["block_bytes", "1,048,576  (1.0 MiB), 524,288  (0.5 MiB)"],
        ["token_bytes", "23,040"],
        ["features", "avx2, fma"],
        ["fits", "yes"],
        ["note", "-"],
    ]


def test_json_has_the_values_unrounded(tmp_path, capsys):
    file = tmp_path / "report.json"
    show(REPORT, file)
    assert json.loads(file.read_text()) == REPORT


def test_what_is_empty_shows_as_a_dash(capsys):
    show({"windows": [], "defaults": {}, "name": "", "none": None, "zero": 0, "kept": ["a"]}, None)
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["-", "-", "-", "-", "0", "a"]


def test_a_file_without_a_folder_is_refused_before_anything_is_computed(tmp_path, capsys):
    assert cli.run(["plan", "--list", "--json", str(tmp_path / "no" / "report.json")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "'--json'" in captured.err
    assert repr(str(tmp_path / "no")) in captured.err

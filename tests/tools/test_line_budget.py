"""The budget counts what it should and names what breaks it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "line_budget.py"
spec = importlib.util.spec_from_file_location("line_budget", TOOL)
line_budget = importlib.util.module_from_spec(spec)
spec.loader.exec_module(line_budget)


def test_only_sources_are_counted(tmp_path):
    (tmp_path / "src/room").mkdir(parents=True)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "src/room/a.py").write_text("x\n" * 3)
    (tmp_path / "src/room/a.so").write_bytes(b"\xff\n" * 9)
    (tmp_path / "csrc/k.cpp").write_text("y\n" * 2)
    (tmp_path / "tests/test_a.py").write_text("z\n" * 9)
    assert line_budget.count(tmp_path) == {Path("src/room/a.py"): 3, Path("csrc/k.cpp"): 2}


def test_a_file_may_have_500_lines_and_no_more():
    assert line_budget.overruns({Path("a.py"): 500}) == []
    assert line_budget.overruns({Path("a.py"): 501}) == ["a.py: 501 lines, the limit is 500"]


def test_the_total_is_limited():
    limit = line_budget.TOTAL_LIMIT
    full = {Path(f"{i}.py"): 500 for i in range(limit // 500)} | {Path("rest.py"): limit % 500}
    assert line_budget.overruns(full) == []
    found = line_budget.overruns(full | {Path("one.py"): 1})
    assert found == [f"{limit + 1} lines in src and csrc, the limit is {limit}"]

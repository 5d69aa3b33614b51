"""Compiled kernels are refused where sources lie beside them that they are not of, or where there are none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.core.errors import MachineError
from headrace.ops.kernels import check_kernels, kernels, sources_digest

ROOT = Path(__file__).parents[2]


def test_the_build_and_python_agree_on_the_sources():
    check_kernels(kernels, ROOT)


def test_an_installed_package_has_no_sources_to_differ_from(tmp_path: Path):
    check_kernels(SimpleNamespace(__file__="_kernels.so"), tmp_path)


@pytest.mark.parametrize("changed", ["CMakeLists.txt", "csrc/dot.h", "csrc/new.cpp"])
def test_any_change_of_a_source_shows(tmp_path: Path, changed: str):
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    module = SimpleNamespace(__file__="_kernels.so", SOURCES=sources_digest(tmp_path))
    check_kernels(module, tmp_path)
    with (tmp_path / changed).open("a") as file:
        file.write(" ")
    with pytest.raises(MachineError, match=r"_kernels\.so.*build them again \(make kernels\)"):
        check_kernels(module, tmp_path)
    with pytest.raises(MachineError, match="build them again"):  # of a time when kernels did not say it
        check_kernels(SimpleNamespace(__file__="_kernels.so"), tmp_path)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_command_says_it_in_one_line(tmp_path: Path, compiled: bool):
    package = tmp_path / "src" / "headrace"
    ignored = [] if compiled else ["_kernels*"]
    shutil.copytree(ROOT / "src" / "headrace", package, ignore=shutil.ignore_patterns("__pycache__", *ignored))
    (tmp_path / "csrc").mkdir()
    (tmp_path / "CMakeLists.txt").touch()
    if compiled:
        shutil.copy(kernels.__file__, package)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    for command in (["doctor"], ["serve", "--port", "0"]):
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *command], capture_output=True, text=True, timeout=60, env=environment
        )
        assert done.returncode == 1
        expected = "are not of the sources" if compiled else "the kernels are not compiled"
        assert expected in done.stderr and "Traceback" not in done.stderr, done.stderr

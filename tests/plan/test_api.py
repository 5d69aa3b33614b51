"""The planner in Python: the package is the function, with the command's flags as keywords."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import cli
from headrace.commands.plan import plan as command
from headrace.core.errors import ConfigError
from headrace.plan.asking import ask

# Flags of the command that are no part of the question, and those that other keywords stand for.
_OTHERS = {"listed", "example", "ablation", "plot", "json_file"}


def test_importing_the_package_loads_no_planner_and_calling_it_does() -> None:
    code = "import sys, headrace; assert 'headrace.plan' not in sys.modules; from headrace import plan; print(plan)"
    code += "; import headrace.plan.question; assert 'headrace.plan.search' not in sys.modules; headrace.plan.question"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<module 'headrace.plan'")


def test_keywords_are_the_flags() -> None:
    keywords = set(inspect.signature(headrace.plan).parameters)
    assert keywords == set(inspect.signature(ask).parameters)
    flags = {parameter.name for parameter in command.params} - _OTHERS
    assert flags <= keywords


def test_it_finds_what_the_command_finds(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    flags = ["--model", "llama-3-8b", "--gpu", "h100,a100", "--qps", "300", "--no-simulate", "--json", str(file)]
    assert cli.run(["plan", *flags]) == 0
    found = headrace.plan(model="llama-3-8b", gpu=("h100", "a100"), qps=300, simulate=False)
    assert json.loads(json.dumps(found.to_dict())) == json.loads(file.read_text())
    assert found.gpus > 0 and found.cost_per_hour > 0


def test_a_picture_without_an_ablation_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.run(["plan", "--list", "--plot", str(tmp_path / "x.png")]) == 2
    assert "--plot draws an --ablation" in capsys.readouterr().err


def test_a_bad_question_is_refused_as_the_command_does() -> None:
    for function in (headrace.plan, headrace.ablate):
        with pytest.raises(ConfigError, match="give either qps or concurrent_users"):
            function(model="llama-3-8b")
        with pytest.raises(TypeError, match="inputlen"):
            function(model="llama-3-8b", inputlen=3)  # type: ignore[call-arg]


def test_no_interval_begins_below_one_gpu() -> None:
    found = headrace.plan(model="llama-3-8b", qps=1, simulate=False)
    assert found.gpus == found.interval[0] == 1


def test_names_are_listed_and_others_refused() -> None:
    assert {"plan", "ablate"} <= set(dir(headrace))
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        _ = headrace.plam  # type: ignore[attr-defined]

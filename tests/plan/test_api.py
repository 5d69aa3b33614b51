"""The planner in Python: the package is the function, with the command's flags as keywords."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import headrace
from headrace.commands.plan import plan as command
from headrace.core.errors import ConfigError
from headrace.plan.asking import ask

# Flags of the command that are no part of the question, and those that other keywords stand for.
_OTHERS = {"listed", "example", "ablation", "plot", "json_file", "simulate", "trace", "rate_multiplier"}


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


def test_a_bad_question_is_refused_as_the_command_does() -> None:
    for function in (headrace.plan, headrace.ablate):
        with pytest.raises(ConfigError, match="give either qps or concurrent_users"):
            function(model="llama-3-8b")
        with pytest.raises(TypeError, match="inputlen"):
            function(model="llama-3-8b", inputlen=3)  # type: ignore[call-arg]


def test_names_are_listed_and_others_refused() -> None:
    assert {"plan", "ablate"} <= set(dir(headrace))
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        _ = headrace.plam  # type: ignore[attr-defined]

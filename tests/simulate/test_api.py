"""The simulator in Python: the package is the function, with the command's flags as keywords and its report."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

import headrace
from headrace import cli
from headrace.commands.simulate import simulate as command
from headrace.core.errors import ConfigError

CHAT = {"model": "llama-3-8b", "gpu": "h100", "workload": "chat", "requests": 40, "replicas": 2, "seed": 3}


def test_it_finds_what_the_command_finds(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    flags = [part for name, value in CHAT.items() for part in (f"--{name}", str(value))]
    assert cli.run(["simulate", *flags, "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    found = json.loads(json.dumps(headrace.simulate(**CHAT).to_dict()))  # type: ignore[arg-type]
    assert found["finished"] == 40 and found["ttft_ms"]["p99"] > 0
    assert {name: value for name, value in found.items() if name != "wall_s"} == {
        name: value for name, value in written.items() if name not in ("wall_s", "block_size")
    }


def test_keywords_are_the_flags() -> None:
    keywords = set(inspect.signature(headrace.simulate).parameters)
    flags = {parameter.name for parameter in command.params} - {"json_file", "html", "multipliers", "plot", "progress"}
    assert flags <= keywords


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workload": None}, "give either trace"),
        ({"trace": "x.csv"}, "give either trace"),
        ({"workload": "chatt"}, "did you mean chat"),
        ({"precision": "fp7"}, "precision must be one of"),
        ({"workload": None, "trace": "x.csv", "rate": 3.0}, "rate and users go with workload"),
        ({"workload": None, "trace": "no-such-file.csv"}, "no-such-file.csv"),
    ],
)
def test_what_it_refuses(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        headrace.simulate(**{**CHAT, **changes})  # type: ignore[arg-type]

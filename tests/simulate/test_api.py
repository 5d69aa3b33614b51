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
        ({"acceptance": 0.8}, "acceptance goes with num_speculative_tokens"),
        ({"workload": None, "trace": "x.csv", "rate": 3.0}, "rate and users go with workload"),
        ({"requests": 0}, "requests must be at least 1, got 0"),
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"users": 0}, "users must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"workload": None, "trace": "no-such-file.csv"}, "no-such-file.csv"),
    ],
)
def test_what_it_refuses(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        headrace.simulate(**{**CHAT, **changes})  # type: ignore[arg-type]


POOLS = {**{name: value for name, value in CHAT.items() if name != "replicas"}, "prefill_replicas": 1}


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({}, "decode_replicas", "decode_replicas must be at least 1 where the other is given, got None"),
        ({"decode_replicas": 0}, "decode_replicas", "at least 1"),
        ({"decode_replicas": 1, "replicas": 2}, "replicas", "without pools"),
        ({"decode_replicas": 1, "transfer_dtype": "fp4"}, "transfer_dtype", "kv, fp8, int8"),
        ({"decode_replicas": 1, "placement": "moon"}, "placement", "mixed, nodes, racks"),
        ({"decode_replicas": 1, "rack_nodes": 0}, "rack_nodes", "at least 1"),
        ({"decode_replicas": 1, "transfer_min_tokens": -1}, "transfer_min_tokens", "at least 0"),
        ({"decode_replicas": 1, "enable_prefix_caching": False}, "enable_prefix_caching", "pools need"),
        ({"decode_replicas": 1, "fail": ["link:nic7@1+1x2"]}, "fail", "each with its number"),
        ({"prefill_replicas": None, "transfer_dtype": "fp8"}, "transfer_dtype", "goes with prefill_replicas"),
        ({"prefill_replicas": None, "incremental_transfer": False}, "incremental_transfer", "goes with"),
    ],
)
def test_what_it_refuses_of_pools(changes: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        headrace.simulate(**{**POOLS, **changes})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_pools_are_what_the_command_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    asked = {**POOLS, "decode_replicas": 2, "transfer_min_tokens": 100, "router": "prefix", "placement": "racks"}
    flags = [part for name, value in asked.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert cli.run(["simulate", *flags, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "transfer.took_ms.p99" in shown and "transfer.links" not in shown
    written = json.loads(file.read_text())
    found = json.loads(json.dumps(headrace.simulate(**asked).to_dict()))  # type: ignore[arg-type]
    assert found["transfer"] == written["transfer"] and found["finished"] == 40
    assert found["transfer"]["requests"] > 0 and "uplink0.out" in found["transfer"]["links"]
    alone = headrace.simulate(**CHAT)  # type: ignore[arg-type]
    assert "transfer" not in alone.to_dict()

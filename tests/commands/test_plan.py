"""headrace plan: prints an answer with its reasons, writes the same as JSON, and refuses in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import cli

ASKED = ["plan", "--model", "llama-3-8b", "--max-pp", "1", "--pools", "unified", "--no-simulate"]


def test_an_answer_has_its_keys_and_its_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    assert cli.run([*ASKED, "--gpu", "h100,b200", "--qps", "50", "--price", "b200=100", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    keys = {"gpus", "nodes", "cost_per_hour_usd", "cost_per_million_output_tokens_usd", "ttft_ms", "tpot_ms"}
    assert keys | {"per_gpu_bytes", "max_concurrency_per_replica", "binding_limit", "candidates"} <= set(found)
    assert found["gpu"] == "h100" and {one["gpu"] for one in found["candidates"]} >= {"h100"}
    told = capsys.readouterr()
    assert "weighing ways to serve llama-3-8b on b200" in told.err
    assert "tensor parallelism stays inside a node" in told.out


def test_where_no_kernel_was_measured_the_interval_is_wide(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert cli.run([*ASKED, "--gpu", "mi300x", "--qps", "5000", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    low, high = found["gpus_interval"]
    assert low < 0.7 * found["gpus"] and high > 1.3 * found["gpus"]
    assert "no kernel of mi300x was measured" in found["interval_because"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--qps", "nan"], "qps must be above 0"),
        (["--qps", "1", "--price", "h100=x"], "must be GPU=USD"),
        (["--qps", "1", "--slo-tpot-ms", "0.5"], "bandwidth binds"),
        (["--qps", "1", "--trace", "/nowhere"], "does not exist"),
        (["--rate-multiplier", "2", "--qps", "1"], "rate_multiplier goes with trace"),
        ([], "give either qps or concurrent_users"),
    ],
)
def test_bad_input_is_refused_in_words(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*ASKED, *flags]) == 2
    assert says in capsys.readouterr().err

"""headrace bench scheduler runs the load that it says, and reports what it promises."""

from __future__ import annotations

import json

import pytest

from headrace import cli
from headrace.bench.scheduler import Load, measure_scheduler
from headrace.core.errors import ConfigError


def measured(**load):
    steps: list[int] = []
    result = measure_scheduler(Load(**{"prompt_len": 20, "steps": 40, **load}), steps.append)
    assert sum(steps) >= 40
    return result


@pytest.mark.parametrize("depth", [1, 2])
def test_costs_are_sums_of_their_parts(depth):
    result = measured(running=4, depth=depth)
    for key in ("schedule_us", "update_us", "step_us", "encode_us"):
        assert set(result[key]) == {"mean", "p50", "p99"}
        assert result[key]["p99"] >= result[key]["p50"] > 0
    parts = result["schedule_us"]["mean"] + result["update_us"]["mean"]
    assert result["step_us"]["mean"] == pytest.approx(parts, rel=0.2 if depth > 1 else 1e-3, abs=0.02)


def test_a_batch_in_change_ends_and_begins_as_many_in_each_step():
    result = measured(running=12, batch_changes=3, queued=5)
    # 60 steps with 3 changes each; the first requests' turns come in order.
    assert 0.9 * 60 * 3 <= result["ended"] <= 60 * 3
    assert result["mean_running"] > 11
    assert result["mean_queued"] == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize("hit_rate", [0.0, 0.5, 0.99])
def test_the_hit_rate_is_that_of_the_prompts_tokens(hit_rate):
    result = measured(running=8, batch_changes=2, prompt_len=320, hit_rate=hit_rate)
    assert result["cached_share"] == pytest.approx(hit_rate, abs=16 / 320)


@pytest.mark.parametrize(
    ("load", "field"),
    [
        ({"running": 0}, "running"),
        ({"running": 2, "queued": -1}, "queued"),
        ({"running": 2, "hit_rate": 1.5}, "hit_rate"),
        ({"running": 2, "batch_changes": 3}, "batch_changes"),
    ],
)
def test_impossible_loads_are_refused_by_name(load, field):
    with pytest.raises(ConfigError, match=field):
        Load(**load)


def test_the_command_prints_and_writes_the_same(tmp_path, capsys):
    file = tmp_path / "scheduler.json"
    flags = ["--running", "3", "--queued", "2", "--steps", "5", "--prompt-len", "9", "--json", str(file)]
    assert cli.run(["bench", "scheduler", *flags]) == 0
    report = json.loads(file.read_text())
    assert (report["running"], report["queued"], report["steps"]) == (3, 2, 5)
    out = capsys.readouterr().out
    for key in ("schedule_us", "update_us", "step_us"):
        assert f"{key}.p99" in out and report[key]["mean"] > 0

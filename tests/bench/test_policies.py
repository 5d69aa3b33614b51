"""Every claim of headrace bench policies, on small loads: the policy pays, by how much is in docs/bench.md."""

from __future__ import annotations

import json

import pytest

from headrace import cli
from headrace.bench.picture import draw_bars
from headrace.bench.policies import COMPARISONS, TIMES, chats, measure_policies
from headrace.bench.timed_device import TimedDevice
from headrace.bench.virtual import Arrival, run_virtually
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.policy.latency import StepWork


@pytest.fixture(scope="module")
def report():
    told = []
    made = measure_policies(0.1, told.append)
    assert len(told) == len(COMPARISONS)
    return made


def test_continuous_batching_uses_its_slots(report):
    static, continuous = report["batching"]["static"], report["batching"]["continuous"]
    assert continuous["tokens_per_s"] > 1.7 * static["tokens_per_s"]
    assert static["slots_used"] < 0.4 < continuous["slots_used"]


def test_paged_memory_holds_more_requests(report):
    contiguous, paged = report["memory"]["contiguous"], report["memory"]["paged"]
    assert paged["requests_at_once"] > 2 * contiguous["requests_at_once"]
    assert paged["memory_wasted"] < 0.1 < contiguous["memory_wasted"]


def test_a_shared_prefix_is_computed_once(report):
    without, shared = report["sharing"]["no sharing"], report["sharing"]["prefix sharing"]
    assert shared["prompt_tokens_computed"] < 0.5 * without["prompt_tokens_computed"]
    assert shared["tokens_per_s"] > 1.5 * without["tokens_per_s"]


def test_urgent_requests_do_not_wait_for_others(report):
    plain, by_class = report["priority"]["first come first served"], report["priority"]["priority"]
    assert by_class["urgent_ttft_p99_ms"] < 0.05 * plain["urgent_ttft_p99_ms"]
    assert by_class["preemptions"] > 0
    assert by_class["tokens_per_s"] > 0.8 * plain["tokens_per_s"]


def test_chunks_keep_streams_going(report):
    whole, chunked = report["chunking"]["whole prompts"], report["chunking"]["chunks of 256"]
    assert chunked["max_stall_ms"] < 0.2 * whole["max_stall_ms"]
    assert whole["max_stall_ms"] > 480


def test_time_is_the_devices(report):
    """A request alone: its prompt's step, then one step for each further token."""
    has = Capacity(1, 16, (64,), (None,), 512, 50_000)
    device = TimedDevice(has, lambda batch: TIMES(StepWork.of(batch)))
    request = chats(1)[0]
    run = run_virtually(Engine(device, Config()), device, [Arrival(2.0, request)])
    line = run.lines[request.request_id]
    assert (line.begun, len(line.tokens)) == (2.0, request.max_tokens)
    count = len(request.prompt_ids)
    assert line.first - 2.0 == pytest.approx(10e-3 + 0.12e-3 * count + 2e-9 * count * count / 2)
    assert line.gaps[0] == pytest.approx(10e-3 + 0.12e-3 + 10e-9 * (count + 1))
    assert run.elapsed_s == pytest.approx(line.last)


def test_the_command_writes_and_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "report.json", tmp_path / "report.svg"
    assert cli.run(["bench", "policies", "--scale", "0.02", "--json", str(file), "--plot", str(picture)]) == 0
    assert set(json.loads(file.read_text())) == {"times", *COMPARISONS}
    assert picture.read_text().startswith("<?xml")
    assert "chunking.whole prompts.max_stall_ms" in capsys.readouterr().out


def test_a_picture_of_no_known_kind_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match="plot"):
        draw_bars(tmp_path / "report.xyz", {"a": {"x": 1.0}}, columns=1)

"""The choice by simulation: what is chosen was rehearsed and kept its times; the memory that it is given adds up."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.models.published import published_model
from headrace.plan.asking import ask
from headrace.plan.memory import memory_of
from headrace.plan.question import Load
from headrace.plan.search import plan
from headrace.policy.roofline import Serving


def test_what_is_chosen_keeps_its_times_in_the_simulator() -> None:
    asked = ask("llama-3-8b", "h100", qps=30, output_len=50, pools="unified", max_pp=1, max_tp=1)
    found = plan(asked)
    told = found.details["simulation"]
    assert told["candidates_tried"] >= 1
    (seen,) = told["at_capacity"]
    assert seen["tpot_ms"]["p99"] <= 51 and seen["ttft_ms"]["p99"] <= 1020
    assert found.candidates[0]["simulated"]
    assert found.gpus == plan(asked).gpus


def test_two_pools_are_two_cells_between_which_the_cache_moves() -> None:
    asked = ask("llama-3-8b", "h100", qps=30, output_len=50, pools="split", max_tp=1, max_pp=1, kv_cache_dtype="fp8")
    found = plan(asked)
    assert [pool["does"] for pool in found.details["pools"]] == ["prefill", "decode"]
    assert len(found.details["simulation"]["at_capacity"]) == 2
    # 200 tokens of 32 layers of 8 heads of 128, keys and values of one byte.
    assert found.details["network"]["kv_transfer_bytes_per_request"] == 200 * 32 * 8 * 128 * 2
    assert found.details["network"]["kv_transfer_bytes_per_s"] == pytest.approx(30 * 200 * 65536)
    # Together, over a NIC of which 0.65 is reached, and shared by the prompts of a step.
    joined, alone = found.details["simulation"]["pools_together"], 1e3 * 200 * 65536 / (50e9 * 0.65)
    assert alone <= joined["transfer_waited_ms"]["p50"] <= 11 * alone
    assert joined["keeps_times"] and 0 < joined["busiest_link_utilization"] < 1
    assert (found.ttft, found.tpot) == (joined["ttft_ms"], joined["tpot_ms"])
    assert plan(asked).details == found.details


def test_a_trace_is_sized_for_its_busiest_tenth(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["at", "input_len", "output_len"])
        # 20 a second, in the last tenth of 10 seconds 80.
        table.writerows([i / 20, 100 + i % 100, 20] for i in range(180))
        table.writerows([9 + i / 80, 100 + i % 100, 20] for i in range(80))
    found = plan(ask("llama-3-8b", "h100", trace=file, rate_multiplier=2, max_pp=1, simulate=False))
    assert found.details["requests_per_s"] == pytest.approx(160, rel=0.05)
    with pytest.raises(ConfigError, match="leave out qps"):
        ask("llama-3-8b", "h100", trace=file, qps=1)
    file.write_text("at,input_len,output_len\n0,10")
    with pytest.raises(ConfigError, match=r"trace\.csv"):
        ask("llama-3-8b", "h100", trace=file)


def test_memory_of_a_gpu_adds_up_to_hand_arithmetic() -> None:
    gpu, spec = known_hardware("h100"), published_model("llama-3-70b")
    load = Load(1.0, 200, 200, prefix_len=160)
    memory = memory_of(spec, Serving(gpu, 4), 2048, load)
    assert memory is not None
    assert sum(memory.parts().values()) == 80 * 2**30
    assert memory.weights == pytest.approx(2 * 70.55e9 / 4, rel=1e-3)
    token = 2 * 80 * 8 * 128 * 2 // 4  # keys and values of 80 layers, two heads of a rank, two bytes
    assert memory.request == 400 * token and memory.prefix == 160 * token
    assert memory.held == memory.cache // (400 * token)
    assert memory_of(spec, Serving(gpu, 1), 2048, load) is None
    stages = memory_of(spec, Serving(gpu, 1, "fp8", "fp8", 2), 2048, load)
    assert stages is not None and stages.request == 400 * 40 * 8 * 128 * 2

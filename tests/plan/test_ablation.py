"""What each optimization saves: figures that follow by arithmetic, what is kept and why, and the command's report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headrace import cli
from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.core.model_spec import WeightTypes
from headrace.plan import trial
from headrace.plan.ablation import ablate
from headrace.plan.asking import ask
from headrace.plan.cell import Cell, draw_requests
from headrace.plan.optimization import OPTIMIZATIONS
from headrace.plan.question import Load, Question
from headrace.plan.recipe import Recipe, best_replica, pace_of, room
from headrace.plan.trial import Trials, season_mean
from headrace.policy.latency import LinearPrior, StepWork
from headrace.policy.pace import Host, Pace
from headrace.simulate.fleet import Fleet
from headrace.simulate.simulator import simulate
from headrace.workload.arrivals import poisson
from headrace.workload.demand import Demand

SMALL = {"model": "llama-3-8b", "gpu": "h100", "input_len": 24, "output_len": 16, "slo_tpot_ms": 12.0}
FLAGS = ["--model", "llama-3-8b", "--gpu", "h100", "--qps", "5000", "--input-len", "24", "--output-len", "16"]
FLAGS += ["--prefix-len", "256", "--slo-tpot-ms", "12", "--ablation"]


def question(**changes: Any) -> Question:
    return ask(**{**SMALL, "qps": 5000.0, **changes})


@pytest.fixture(autouse=True, scope="module")
def few_requests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "FEWEST", 120)
        patch.setattr(trial, "ROUNDS", 1.0)
        patch.setattr(trial, "WAIT_ROUNDS", 0.5)
        yield


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("ablation") / "report.json"
    assert cli.run(["plan", *FLAGS, "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_every_optimization_is_a_row_in_order(report: dict[str, Any]) -> None:
    assert [step["optimization"] for step in report["steps"]] == [o.name for o in OPTIMIZATIONS]
    for step in report["steps"]:
        assert {"gpus", "cost_per_hour_usd", "ttft_ms", "itl_p99_ms", "max_stall_ms", "by", "effort"} <= set(step)
        assert ("left_out" in step) == step["kept"] and ("with_it" in step) != step["kept"]


def test_the_chain_adds_up(report: dict[str, Any]) -> None:
    cost = report["naive"]["cost_per_hour_usd"]
    for step in report["steps"]:
        assert step["saved_share"] == pytest.approx(1 - step["cost_per_hour_usd"] / cost, abs=1e-4)
        if step["kept"]:
            cost = step["cost_per_hour_usd"]
    whole = report["whole"]["cost_per_hour_usd"]
    assert whole == cost < report["naive"]["cost_per_hour_usd"]
    for step in report["steps"]:
        other = step.get("left_out") or step.get("with_it")
        sign = 1 if step["kept"] else -1
        assert step["saves_usd_per_hour"] == pytest.approx(sign * (other["cost_per_hour_usd"] - whole), abs=0.02)


def test_what_saves_is_kept_and_what_costs_is_not(report: dict[str, Any]) -> None:
    steps = {step["optimization"]: step for step in report["steps"]}
    for name in ("continuous batching", "prefix caching", "elastic scaling"):
        assert steps[name]["kept"] and steps[name]["saved_share"] > 0.01
    assert steps["paged memory"]["kept"]
    # Nothing of a drawn load comes back later, so there is nothing to offload.
    assert not steps["KV offload"]["kept"] and steps["KV offload"]["saved_share"] == 0
    for step in steps.values():
        assert step["kept"] or step["saved_share"] < 0.01 or not step["keeps_slo"]
    first = [one["optimization"] for one in report["what_to_do_first"]]
    worth = [max(one["saves_usd_per_hour"], 0) / one["effort"] for one in report["what_to_do_first"]]
    assert worth == sorted(worth, reverse=True) and set(first) <= {n for n, s in steps.items() if s["kept"]}


def test_static_batches_keep_users_waiting_for_those_before(report: dict[str, Any]) -> None:
    naive, continuous = report["naive"], report["steps"][0]
    assert naive["ttft_ms"]["p99"] > 3 * continuous["ttft_ms"]["p99"]


def test_the_same_question_has_the_same_answer() -> None:
    recipe = Recipe(static=False, contiguous=False)
    one, two = (Trials(question(), known_hardware("h100")).of(recipe) for _ in range(2))
    assert one == two


def test_users_of_a_rate_need_gpus_in_proportion() -> None:
    recipe = Recipe(static=False, contiguous=False)
    low, high = (Trials(question(qps=qps), known_hardware("h100")).of(recipe).gpus for qps in (1e5, 1e6))
    assert high == pytest.approx(10 * low, rel=0.01)


def test_a_reservation_holds_what_memory_divided_by_it_gives() -> None:
    # 16-bit weights of 16.06 GB leave 58.2 of 74.3 GB: 27,773 blocks of 16 tokens at 128 KiB, 216 times 2,048 tokens.
    wide = question(slo_tpot_ms=1000.0)
    replica = best_replica(wide, known_hardware("h100"), Recipe())
    assert replica.serving.ranks == 1 and replica.blocks == int(58_248_888_832 / (16 * 131072)) == 27775
    assert replica.slots == 27775 * 16 // 2048 == 216


def test_static_batches_are_busy_for_their_mean_over_their_longest() -> None:
    # Steps of one second whatever they compute: a batch takes as many as its longest answer has tokens.
    prior = LinearPrior(step=1.0, token=0.0, request=0.0, context=0.0, pair=0.0, row=0.0)
    load = Load(rate=1.0, input_len=16, output_len=8)
    requests = draw_requests(load, 32, 3, room=room(load))
    cell = Cell(8, 2048, 16, 16384, 2048, Pace(prior, Host()), static=True)
    lengths = [request.max_tokens for request in requests]
    seconds = sum(max(lengths[first : first + 8]) for first in range(0, 32, 8))
    assert cell.sustained(requests) == pytest.approx(32 / seconds)
    assert replace(cell, static=False).sustained(requests) > 1.2 * 32 / seconds


def test_drafts_bring_those_accepted_and_one_more() -> None:
    asked = question(acceptance=0.5)
    serving = best_replica(asked, known_hardware("h100"), Recipe()).serving
    plain, drafting = (pace_of(asked, Recipe(drafts=drafts), serving) for drafts in (0, 3))
    one = StepWork(1, 1, 100, 0.0, 1, 1)
    verified = plain(StepWork(4, 1, 0, 400, 4, 4, 1)) + 3 * asked.drafter.pace(serving)(one)
    assert drafting(one) == pytest.approx(verified / (1 + 0.5 + 0.25 + 0.125), rel=1e-3)
    # Where every row counts and few hold, none is made.
    many, hopeless = StepWork(4000, 4000, 400_000, 0.0, 4000, 4000), question(acceptance=0.1)
    assert pace_of(hopeless, Recipe(drafts=3), serving)(many) == pytest.approx(plain(many))


def test_eight_bits_of_attention_are_what_the_hardware_multiplies() -> None:
    (mixed,) = [o for o in OPTIMIZATIONS if o.name == "mixed precision by layer"]
    for gpu, eight in (("h100", "fp8"), ("a100", "int8")):
        assert mixed.apply(Recipe(), known_hardware(gpu)).weights == WeightTypes("bf16", eight, "int4")


def test_a_season_saves_what_lies_under_its_peak() -> None:
    assert 0.5 < season_mean() < 0.7


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gpu": "a100,h100"}, "an ablation is of one gpu, got a100, h100"),
        ({"slo_tpot_ms": 1.0}, r"slo_tpot_ms must be at least \d+ for llama-3-8b on h100, got 1"),
        ({"model": "deepseek-v3", "gpu": "l40s", "slo_tpot_ms": 1000.0}, "do not fit into"),
    ],
)
def test_what_no_fleet_serves_is_refused_with_the_reason(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ablate(question(**changes))


def test_a_cell_is_a_fleet_of_one_replica_in_the_simulator() -> None:
    asked = question(prefix_len=128)
    recipe = Recipe(static=False, contiguous=False, caching=True, chunk=2048)
    replica = best_replica(asked, known_hardware("h100"), recipe)
    cell = Cell(replica.slots, replica.blocks, 16, 2048, 2048, pace_of(asked, recipe, replica.serving))
    requests = draw_requests(asked.load, 300, 5, room=2048)
    waits = cell.waits(requests, 150.0, 6, warm=0.0)
    times = poisson(150.0)(Random(6), 0.0)
    demands = [
        Demand(at, ((0, 128), (index + 1, len(request.prompt_ids) - 128)), request.max_tokens)
        for index, (at, request) in enumerate(zip(times, requests, strict=False))
    ]
    fleet = Fleet(
        asked.model,
        replica.serving,
        max_num_seqs=replica.slots,
        max_num_batched_tokens=2048,
        max_model_len=2048,
    )
    found = simulate(demands, fleet)
    assert 1e3 * waits.ttft_p50 == pytest.approx(found.ttft_ms.p50, rel=0.02)
    assert 1e3 * waits.ttft_p99 == pytest.approx(found.ttft_ms.p99, rel=0.05)
    assert 1e3 * waits.itl_p99 == pytest.approx(found.itl_ms.p99, rel=0.02)
    assert 1e3 * waits.stall == pytest.approx(found.max_stall_ms, rel=0.05)


def test_the_answer_does_not_depend_on_the_order_of_hashes() -> None:
    code = (
        "from headrace.plan.asking import ask; from headrace.plan.recipe import Recipe; "
        "from headrace.plan.trial import Trials; "
        "q = ask('llama-3-8b', qps=5000, input_len=24, output_len=8, slo_tpot_ms=12); "
        "print(Trials(q, q.gpus[0]).of(Recipe(static=False, contiguous=False, urgent=0.2)).figures())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and b"gpus" in said.pop()


def test_what_is_added_before_any_fleet_fits_is_kept() -> None:
    # 16-bit weights of 70 billion parameters do not fit two L40S; in 8 bits they do.
    asked = ask("llama-3-70b", "l40s", qps=50.0, input_len=16, output_len=2, slo_tpot_ms=150.0, max_tp=2)
    found = ablate(asked)
    steps = {step.optimization.name: step for step in found.steps}
    assert found.naive is None and found.first_saved is None
    assert steps["continuous batching"].kept and steps["continuous batching"].trial is None
    assert steps["FP8 weights"].trial is not None and steps["FP8 weights"].saved is None
    json.dumps(found.to_dict())

"""What must hold of any simulation, whatever is asked for: nothing is lost, no work comes or goes, time adds up, and
steps taken as one are the single steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.engine.engine import Engine
from headrace.simulate.asking import Asked
from headrace.simulate.fleet import Fleet
from headrace.simulate.kinds import ROUTERS
from headrace.simulate.result import Result, Slo
from headrace.simulate.simulator import Simulation, simulate
from headrace.workload.demand import ANSWER, Demand
from headrace.workload.summary import shared_prefix_share

# Memory for few blocks, so that requests wait for it, are preempted and evict what is cached.
TIGHT = Asked("llama-3-8b", "h100", block_size=16, max_num_seqs=6, max_num_batched_tokens=64).fleet()
TIGHT = replace(TIGHT, gpu_memory_utilization=0.2235)


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Demand], Fleet, str]:
    demands: list[Demand] = []
    at = 0.0
    for index in range(draw(st.integers(1, 14))):
        at += draw(st.sampled_from([0.0, 0.004, 0.05, 0.9]))
        output = draw(st.sampled_from([1, 2, 17, 60, 300]))
        before = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        if before is not None and draw(st.booleans()):
            asked = demands[before]
            prompt = (*asked.prompt, (ANSWER, asked.output_len), (1000 + index, 9))
            demands.append(Demand(draw(st.sampled_from([0.0, 0.3])), prompt, output, follows=before))
            continue
        shared = (draw(st.integers(0, 2)), draw(st.sampled_from([5, 16, 90])))
        own = (100 + index, draw(st.sampled_from([1, 7, 33, 400])))
        demands.append(Demand(at, (shared, own), output))
    guessed = draw(st.sampled_from([0, 0, 3]))
    fleet = replace(TIGHT, replicas=draw(st.integers(1, 3)), num_speculative_tokens=guessed)
    return demands, fleet, draw(st.sampled_from(ROUTERS))


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(loads())
def test_nothing_is_lost_and_time_adds_up(load: tuple[list[Demand], Fleet, str]) -> None:
    demands, fleet, router = load
    run = Simulation(demands, fleet, router, seed=0)
    run.run()
    result = run.result(Slo(), 0.0)
    entries = run.ledger.entries
    assert len(entries) == result.requests == len(demands)
    for index, entry in entries.items():
        assert entry.ended != bool(entry.refused)
        if entry.ended:
            assert entry.tokens == demands[index].output_len
            assert entry.at <= entry.first <= entry.last
            assert 0 <= entry.cached < entry.input_len == demands[index].input_len
    assert result.finished + sum(result.refused.values()) == len(demands)
    # Little's law: as many are there, on average, as come in a second times how long each stays.
    stays = sum(entry.last - entry.at for entry in entries.values() if entry.ended)
    assert result.in_system * result.duration_s == pytest.approx(stays, rel=1e-5, abs=1e-5)
    assert all(0 <= one.utilization <= 1 for one in result.replicas)
    served = sum(entry.input_len for entry in entries.values() if entry.ended)
    if served and not result.refused:
        assert result.prefix_hit_rate <= shared_prefix_share(demands) + 1e-6


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(loads())
def test_steps_taken_as_one_are_the_single_steps_to_the_bit(load: tuple[list[Demand], Fleet, str]) -> None:
    demands, fleet, router = load
    together = _ledger_of(demands, fleet, router)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "repeats", lambda self: None)
        singly = _ledger_of(demands, fleet, router)
    # Who sees a replica between two steps may place a request elsewhere, but not where nobody looks.
    if router == "round-robin" or fleet.replicas == 1:
        assert together == singly


def _ledger_of(demands: list[Demand], fleet: Fleet, router: str) -> tuple[dict[int, object], list[float]]:
    run = Simulation(demands, fleet, router, seed=0)
    run.run()
    gaps, counts = run.ledger.gaps()
    every = sorted(gap for gap, count in zip(gaps.tolist(), counts.tolist(), strict=True) for _ in range(count))
    return dict(run.ledger.entries), every


def test_what_never_fits_is_refused_by_name_and_so_is_what_follows_it() -> None:
    long = Demand(0.0, ((1, 10_000_000),), 5)
    demands = [long, Demand(1.0, ((2, 5),), 1, follows=0), Demand(0.0, ((3, 5),), 4)]
    result: Result = simulate(demands, TIGHT)
    assert result.finished == 1
    assert result.refused == {"context_length_exceeded": 1, "follows_refused": 1}

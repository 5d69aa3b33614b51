"""A prefix router that is told what caches store and remove finds more than one that guesses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.simulate.api import simulate
from headrace.simulate.asking import Asked
from headrace.simulate.faults import DIES, Fault
from headrace.simulate.prompts import Prompts
from headrace.simulate.result import Result
from headrace.simulate.simulator import Simulation
from headrace.workload.demand import Demand


def served(delay_ms: float | None, **changes: Any) -> Result:
    asked: dict[str, Any] = {"workload": "agent", "rate": 4, "requests": 150, "replicas": 4, "router": "prefix"}
    # 5.6 GB of cache beside 9.1 of weights: some 40,000 tokens, of conversations that grow to as many.
    small: dict[str, Any] = {"precision": "fp8", "gpu_memory_utilization": 0.2, "max_model_len": 32_768}
    return simulate("llama-3-8b", "h100", kv_events_delay_ms=delay_ms, **{**asked, **small, **changes})


@pytest.mark.parametrize(("workload", "rate"), [("agent", 4), ("chat", 12)])
def test_it_finds_no_less_than_one_that_guesses_and_more_than_one_that_never_hears(workload: str, rate: float) -> None:
    guessed, told, deaf = (served(delay, workload=workload, rate=rate) for delay in (None, 0.0, 1e12))
    assert told.prefix_hit_rate >= guessed.prefix_hit_rate
    assert told.prefix_hit_rate > deaf.prefix_hit_rate + 0.01
    assert told.finished == guessed.finished == deaf.finished


def test_the_same_seed_gives_the_same_result() -> None:
    one, other = (served(20.0, requests=60) for _ in range(2))
    assert replace(one, wall_s=0.0) == replace(other, wall_s=0.0)


def test_what_is_known_are_the_blocks_that_are_cached_and_goes_with_a_replica() -> None:
    fleet = Asked("llama-3-8b", "h100", replicas=2, block_size=64).fleet()
    demands = [Demand(0.0, ((1, 300),), 5), Demand(5.0, ((1, 300), (2, 100)), 5), Demand(20.0, ((3, 10),), 5)]
    names = Prompts().hashes(((1, 300),), 64)
    for faults, depth in (([], 4.0), ([Fault(DIES, 0, 10.0)], 0.0)):
        run = Simulation(demands, fleet, "prefix", 0, faults=faults, kv_events_delay_s=0.1)
        entries = run.run()
        assert [entries[i].replica for i in (0, 1)] == [0, 0] and entries[1].cached >= 256
        assert run.index.depths(names).tolist() == [depth, 0.0]


@pytest.mark.parametrize(
    "changes", [{"router": "least-loaded"}, {"replicas": 1, "prefill_replicas": 1, "decode_replicas": 1}]
)
def test_who_heeds_no_events_is_refused_them(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="kv_events_delay_ms goes with router prefix"):
        served(0.0, **changes)


def test_a_delay_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="kv_events_delay_ms must be finite and at least 0, got -1"):
        served(-1.0)

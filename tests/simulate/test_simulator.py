"""Fleets in virtual time: what must hold of any run, and what theory says of simple ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.errors import ConfigError
from headrace.simulate.asking import Asked
from headrace.simulate.kinds import ROUTERS
from headrace.simulate.simulator import simulate
from headrace.workload.demand import Demand

FLEET = Asked("llama-3-8b", "h100", replicas=3, block_size=64).fleet()


def load(count: int, *, gap: float = 0.05, shared: int = 200) -> list[Demand]:
    return [Demand(i * gap, ((i % 4, shared), (100 + i, 50 + 37 * i % 900)), 1 + 13 * i % 90) for i in range(count)]


@pytest.mark.parametrize("router", ROUTERS)
def test_every_request_ends_and_all_tokens_come(router: str) -> None:
    demands = load(60)
    result = simulate(demands, FLEET, router=router)
    assert result.finished == result.requests == len(demands)
    assert not result.refused
    tokens = sum(one.output_len for one in demands)
    assert result.output_tokens_per_s * result.duration_s == pytest.approx(tokens, rel=1e-5)
    assert 0 < result.utilization <= 1
    assert sum(one.requests for one in result.replicas) == len(demands)


def test_the_same_seed_gives_the_same_result() -> None:
    one, other = (simulate(load(40), FLEET, router="two-choices", seed=3) for _ in range(2))
    assert replace(one, wall_s=0.0) == replace(other, wall_s=0.0)


def test_an_unknown_router_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="least-loaded"):
        simulate(load(1), FLEET, router="least-load")

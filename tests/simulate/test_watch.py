"""Watch: parts of requests' time add up to the whole, and load over time stays bounded and true."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.replica import Load
from headrace.simulate.asking import Asked
from headrace.simulate.pools import Pools
from headrace.simulate.simulator import simulate
from headrace.simulate.watch import PARTS, Watch
from headrace.workload.demand import Demand
from headrace.workload.synthetic import named


@pytest.mark.parametrize("slots", [4, 64])
def test_parts_add_up_to_the_whole(slots):
    fleet = Asked("llama-3-8b", "h100", replicas=2, max_num_seqs=slots).fleet()
    demands, watch = named("rag", requests=60, rate=20.0), Watch()
    watched, alone = simulate(demands, fleet, watch=watch), simulate(demands, fleet)
    assert watched.e2e_ms == alone.e2e_ms and watched.finished == 60
    assert watch.parts.shape == (60, len(PARTS)) and watch.parts.min() >= 0
    assert np.sort(watch.parts.sum(axis=1)) == pytest.approx(np.sort(watch.e2e))
    queue = watch.parts[:, PARTS.index("queue")]
    # Four slots are too few for what comes, 64 are not.
    assert (queue.max() > 1) if slots == 4 else (queue.max() < 0.1)
    seconds, running, waiting, used = watch.over_time.T
    assert (np.diff(seconds) >= 0).all() and running.max() <= 2 * slots and 0 <= used.min() <= used.max() <= 1
    assert (running[-1], waiting[-1], used[-1]) == (0, 0, 0)


def test_who_lost_its_place_is_stalled():
    # A cache that holds a few requests' prompts, not what they all become.
    fleet = Asked("llama-3-8b", "l40s", gpu_memory_utilization=0.4, max_num_seqs=32, max_model_len=8192).fleet()
    watch = Watch()
    result = simulate([Demand(0.01 * k, ((k, 100),), 400) for k in range(40)], fleet, watch=watch)
    assert result.preemptions > 0
    stalled = watch.parts[:, PARTS.index("stalled")]
    assert 0 < np.count_nonzero(stalled) < len(stalled)
    assert np.sort(watch.parts.sum(axis=1)) == pytest.approx(np.sort(watch.e2e))


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=50))
def test_load_is_the_sum_of_the_replicas(told):
    watch, loads, now = Watch(), {}, 0.0
    for gap, replica, running in told:
        now += gap
        loads[replica] = running
        watch.see(now, replica, Load(running=running, waiting=1, blocks_used=running, blocks_total=10))
        assert tuple(watch.over_time[-1]) == (
            now,
            sum(loads.values()),
            len(loads),
            pytest.approx(sum(loads.values()) / (10 * len(loads))),
        )


def test_a_long_run_is_thinned():
    watch = Watch()
    for k in range(50_000):
        watch.see(k * 0.01, 0, Load(running=k % 7))
    seconds = watch.over_time[:, 0]
    assert 1000 < len(seconds) < 4096 and seconds[-1] > 490 and np.diff(seconds).max() < 1


@pytest.mark.parametrize("slots", [4, 64])
def test_what_travels_between_pools_is_a_part_of_its_own(slots):
    fleet = Asked("llama-3-8b", "h100", max_num_seqs=slots).fleet()
    demands, watch = named("rag", requests=60, rate=10.0), Watch()
    simulate(demands, Pools(fleet, fleet, incremental=False), watch=watch)
    assert watch.parts.shape == (60, len(PARTS)) and watch.parts.min() >= 0
    assert np.sort(watch.parts.sum(axis=1)) == pytest.approx(np.sort(watch.e2e))
    transfer, stalled = (watch.parts[:, PARTS.index(name)] for name in ("transfer", "stalled"))
    assert transfer.min() > 0
    # Whose keys and values have come waits for a slot where there are few.
    assert (stalled.max() > 0.1) == (slots == 4)

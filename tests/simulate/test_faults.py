"""What goes wrong in a simulation costs time and work, and no token: requests of a lost replica go on elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.simulate.asking import Asked
from headrace.simulate.faults import DIES, FREEZES, LINK, SLOW, Fault, read_faults
from headrace.simulate.kinds import ROUTERS
from headrace.simulate.result import Slo
from headrace.simulate.simulator import Simulation, simulate
from headrace.workload.demand import Demand

FLEET = Asked("llama-3-8b", "h100", replicas=3, max_num_seqs=6, max_num_batched_tokens=512).fleet()
LOAD = [Demand(0.05 * i, ((i % 4, 100), (100 + i, 50)), 60) for i in range(24)]


def run(demands, fleet, faults, router="least-loaded", startup_s=2.0):
    simulation = Simulation(demands, fleet, router, 0, faults=faults, startup_s=startup_s)
    simulation.run()
    return simulation.ledger.entries, simulation.result(Slo(), 0.0)


@pytest.mark.parametrize("router", ROUTERS)
def test_requests_of_a_replica_that_dies_go_on_elsewhere(router):
    entries, result = run(LOAD, FLEET, [Fault(DIES, 1, 0.5)], router)
    assert result.finished == len(LOAD)
    assert 0 < result.replayed < len(LOAD)
    assert all(entry.tokens == 60 for entry in entries.values())
    moved = [entry for entry in entries.values() if entry.replays]
    assert all(entry.replica != 1 and entry.last > 0.5 for entry in moved)
    # What came before it died stays: none of those begins again.
    assert any(entry.first < 0.5 for entry in moved)


def test_a_replica_that_died_is_there_again_after_its_start():
    late = [Demand(10 + 0.1 * i, ((i, 50),), 5) for i in range(6)]
    entries, _ = run([*LOAD, *late], FLEET, [Fault(DIES, 1, 0.5)], "round-robin")
    assert {entries[len(LOAD) + i].replica for i in range(6)} == {0, 1, 2}
    entries, _ = run([*LOAD, *late], FLEET, [Fault(DIES, 1, 0.5)], "round-robin", startup_s=1000.0)
    assert {entries[len(LOAD) + i].replica for i in range(6)} == {0, 2}


def test_requests_wait_while_no_replica_is_there():
    alone = replace(FLEET, replicas=1)
    entries, result = run(LOAD, alone, [Fault(DIES, 0, 0.3)])
    assert result.finished == len(LOAD)
    assert not [entry for entry in entries.values() if 0.3 < entry.first < 2.3]


def test_one_that_freezes_stalls_its_streams_for_as_long():
    alone = replace(FLEET, replicas=1)
    demands = [Demand(0.0, ((1, 100),), 100)]
    _, calm = run(demands, alone, [])
    _, frozen = run(demands, alone, [Fault(FREEZES, 0, 0.2, 5.0)])
    assert frozen.max_stall_ms == pytest.approx(5000 + calm.itl_ms.p50, rel=0.01)
    assert frozen.duration_s == pytest.approx(calm.duration_s + 5.0)


def test_slow_steps_take_so_many_times_as_long_and_then_no_longer():
    alone = replace(FLEET, replicas=1)
    demands = [Demand(0.0, ((1, 100),), 100)]
    _, calm = run(demands, alone, [])
    _, always = run(demands, alone, [Fault(SLOW, 0, 0.0, 1e6, 3.0)])
    _, awhile = run(demands, alone, [Fault(SLOW, 0, 0.2, 0.3, 3.0)])
    assert always.itl_ms.p50 == pytest.approx(3 * calm.itl_ms.p50)
    assert calm.duration_s < awhile.duration_s < calm.duration_s + 0.3


def test_faults_that_overlap_each_end_in_their_own_time():
    alone, long = replace(FLEET, replicas=1), [Demand(0.0, ((1, 100),), 400)]

    def lasts(*faults):
        return run(long, alone, faults, startup_s=0.1)[1].duration_s

    calm = lasts()
    # Twice as long from 0.2 to 1.2, and three times that from 0.4 to 0.6: work of 0.4 s less than without either.
    both = lasts(Fault(SLOW, 0, 0.2, 1.0, 2.0), Fault(SLOW, 0, 0.4, 0.2, 3.0))
    assert both == pytest.approx(calm + 1.0 - (0.8 / 2 + 0.2 / 6), rel=0.01)
    assert lasts(Fault(FREEZES, 0, 0.2, 5.0), Fault(FREEZES, 0, 2.2, 5.0)) == pytest.approx(calm + 7.0)
    assert lasts(Fault(FREEZES, 0, 0.2, 5.0), Fault(FREEZES, 0, 2.2, 1.0)) == pytest.approx(calm + 5.0)
    # One that died with its slowness is not slow when it is back, and that slowness's end ends no other.
    late = (Fault(SLOW, 0, 0.1, 0.5, 4.0), Fault(DIES, 0, 0.2))
    assert lasts(*late, Fault(SLOW, 0, 0.4, 1e6, 4.0)) > 3 * calm > 2 * lasts(*late)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.builds(
            Fault,
            st.sampled_from([DIES, FREEZES, SLOW]),
            st.integers(0, 2),
            st.sampled_from([0.0, 0.04, 0.5, 1.0, 3.0]),
            st.sampled_from([0.01, 1.0]),
            st.sampled_from([1.0, 4.0]),
        ),
        max_size=5,
    ),
    st.sampled_from(ROUTERS),
    st.sampled_from([0.0, 0.2, 5.0]),
)
def test_whatever_fails_every_request_ends_once_with_all_its_tokens(faults, router, startup_s):
    entries, result = run(LOAD, FLEET, faults, router, startup_s)
    assert result.finished == len(LOAD)
    assert all(entry.ended and entry.tokens == 60 for entry in entries.values())
    assert all(entry.at <= entry.first <= entry.last for entry in entries.values())
    assert 0 <= result.utilization <= 1
    again, other = run(LOAD, FLEET, faults, router, startup_s)
    assert other == result
    assert again == entries


def test_faults_are_read_as_they_are_written():
    assert read_faults(["dies:3@10", "freezes:0@1.5+5", "slow:2@10+60x4"], 4) == [
        Fault(DIES, 3, 10.0),
        Fault(FREEZES, 0, 1.5, 5.0),
        Fault(SLOW, 2, 10.0, 60.0, 4.0),
    ]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("dies:4@10", "there are 0 to 3"),
        ("dies:0", "must be written as"),
        ("dies:0@1+3", "must be written as"),
        ("burns:0@1", "must be written as"),
        ("freezes:0@1", "must be written as"),
        ("slow:0@1+2x0.5", "FACTOR must be at least 1, times as long as without it, got 0.5"),
        ("freezes:0@1e999+1", "finite"),
        ("freezes:0@1.2.3+1", "finite"),
        ("", "must be written as"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(written, said):
    with pytest.raises(ConfigError, match=said) as caught:
        read_faults([written], 4)
    assert caught.value.field == "fail"


def test_a_start_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="startup_s"):
        simulate(LOAD, FLEET, startup_s=float("nan"))


def test_links_of_pools_are_named_as_they_are():
    links = ["nvlink", "nic", "uplink", "nic3", "nic3.in"]
    assert read_faults(["link:nic3.in@1+2x4", "link:uplink@0+1x2"], 2, links) == [
        Fault(LINK, 0, 1.0, 2.0, 4.0, "nic3.in"),
        Fault(LINK, 0, 0.0, 1.0, 2.0, "uplink"),
    ]
    for written, said in (
        ("link:nic9@1+2x4", "there are nvlink, nic, uplink, each with its number"),
        ("link:3@1+2x4", "must be written as"),
        ("link:nic3@1+60x0", "FACTOR must be at least 1, times as long as without it, got 0"),
        ("link:nic@1+2", "must be written as"),
        ("dies:nic@1", "must be written as"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            read_faults([written], 2, links)
        assert caught.value.field == "fail"
    with pytest.raises(ConfigError, match="only pools have links"):
        read_faults(["link:nic@1+2x4"], 2)

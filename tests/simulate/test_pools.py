"""Pools of prefill and decode in virtual time: by hand, what a request's way takes; and no token is lost whatever fails
and however little room there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.core.hardware import UPLINK_S
from headrace.policy.fitted_kernels import kernels_of
from headrace.policy.latency import StepWork
from headrace.simulate.asking import Asked
from headrace.simulate.faults import DIES, FREEZES, LINK, SLOW, Fault
from headrace.simulate.kinds import ROUTERS
from headrace.simulate.placement import PLACEMENTS
from headrace.simulate.pools import Pools
from headrace.simulate.result import Slo
from headrace.simulate.simulator import Simulation
from headrace.simulate.transfers import Transfers
from headrace.workload.demand import ANSWER, Demand

FLEET = Asked("llama-3-8b", "h100", block_size=16, max_num_batched_tokens=1024).fleet()
POOLS = Pools(FLEET, FLEET, min_tokens=0)
SEND = kernels_of("h100").send
NIC = FLEET.serving.hardware.nic * SEND.nic
TOKEN = FLEET.spec.kv_bytes(1)
# Nothing but the wire counts.
PROMPT, ANSWERED = 1000, 20


def run(demands, pools, faults=(), router="round-robin", startup_s=2.0):
    simulation = Simulation(demands, pools, router, 0, faults=faults, startup_s=startup_s)
    simulation.run()
    return simulation, simulation.ledger.entries, simulation.result(Slo(), 0.0)


def prompt_s(tokens, chunk=1024):
    """Seconds of a prompt alone, chunk by chunk."""
    pace, chunks = FLEET.pace(), []
    for start in range(0, tokens, chunk):
        count = min(chunk, tokens - start)
        last = int(start + count == tokens)
        chunks.append(pace(StepWork(count, 1, 0, count * (start + count / 2), last, last, 1)))
    return chunks


def answer_s(prompt, count):
    pace = FLEET.pace()
    return sum(pace(StepWork(1, 1, prompt + i + 1, 0.0, 1, 1)) for i in range(count - 1))


def test_one_alone_takes_prefill_then_the_wire_then_decode():
    _, entries, result = run([Demand(0.0, ((1, PROMPT),), ANSWERED)], POOLS)
    (prefill,) = prompt_s(PROMPT)
    wire = PROMPT * TOKEN / NIC + SEND.nic_fixed
    assert entries[0].first == prefill
    assert entries[0].transfer == pytest.approx(wire)
    # Its decode steps are those of any request with a prompt that is cached.
    assert entries[0].last == pytest.approx(prefill + wire + answer_s(PROMPT, ANSWERED))
    assert result.ttft_ms.p50 == pytest.approx(1e3 * prefill)
    assert result.max_stall_ms == pytest.approx(1e3 * (wire + answer_s(PROMPT, 2)), rel=1e-6)
    transfer = result.transfer
    assert (transfer.requests, transfer.sent_bytes, transfer.saved_bytes) == (1, PROMPT * TOKEN, 0)
    assert transfer.took_ms.p50 == transfer.waited_ms.p50 == pytest.approx(1e3 * wire, rel=1e-6)
    assert set(transfer.links) == {"nic0.out", "nic1.in"}
    share = PROMPT * TOKEN / (NIC * result.duration_s)
    assert transfer.busiest_link_utilization == transfer.links[transfer.busiest_link] == pytest.approx(share, abs=1e-6)
    assert [one.requests for one in result.replicas] == [1, 1]


@pytest.mark.parametrize(
    ("placement", "bandwidth", "latency"),
    [
        ("mixed", FLEET.serving.hardware.link * SEND.link, SEND.link_fixed),
        ("nodes", NIC, SEND.nic_fixed),
        ("racks", NIC, SEND.nic_fixed + UPLINK_S),
    ],
)
def test_the_wire_is_the_one_that_joins_them(placement, bandwidth, latency):
    _, entries, _ = run([Demand(0.0, ((1, PROMPT),), ANSWERED)], replace(POOLS, placement=placement))
    assert entries[0].transfer == pytest.approx(PROMPT * TOKEN / bandwidth + latency)


def test_two_that_share_a_link_have_half_of_it_each():
    pools = replace(POOLS, prefill=replace(FLEET, replicas=2), incremental=False)
    together = [Demand(0.0, ((i, PROMPT),), ANSWERED) for i in range(2)]
    _, entries, result = run(together, pools)
    assert [entry.prefilled for entry in entries.values()] == [0, 1]
    wire = 2 * PROMPT * TOKEN / NIC + SEND.nic_fixed
    assert [entry.transfer for entry in entries.values()] == pytest.approx([wire, wire])
    assert result.transfer.busiest_link == "nic2.in"
    # Where each has a receiver of its own they have all of it.
    _, entries, _ = run(together, replace(pools, decode=replace(FLEET, replicas=2)))
    assert {entry.replica for entry in entries.values()} == {2, 3}
    wire = PROMPT * TOKEN / NIC + SEND.nic_fixed
    assert [entry.transfer for entry in entries.values()] == pytest.approx([wire, wire])


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_what_is_quantized_is_half(dtype):
    demands = [Demand(0.0, ((1, PROMPT),), ANSWERED)]
    whole, half = (run(demands, replace(POOLS, dtype=one))[1:] for one in ("kv", dtype))
    assert 2 * half[1].transfer.sent_bytes == whole[1].transfer.sent_bytes
    saved = whole[0][0].transfer - half[0][0].transfer
    assert saved == pytest.approx(PROMPT * TOKEN / NIC / 2)


def test_chunks_travel_while_others_are_computed():
    demands = [Demand(0.0, ((1, 5000),), ANSWERED)]
    _, whole, _ = run(demands, replace(POOLS, incremental=False))
    _, parts, result = run(demands, POOLS)
    chunks = prompt_s(5000)
    assert whole[0].first == parts[0].first == pytest.approx(sum(chunks))
    assert whole[0].transfer == pytest.approx(5000 * TOKEN / NIC + SEND.nic_fixed)
    # All but the last chunk is there by the time that is computed.
    assert parts[0].transfer == pytest.approx((5000 - 4 * 1024) * TOKEN / NIC + SEND.nic_fixed)
    assert result.transfer.took_ms.p50 == pytest.approx(1e3 * (sum(chunks[1:]) + parts[0].transfer))


def test_what_the_receiver_has_does_not_travel():
    shared, own = 800, 160
    demands = [Demand(3.0 * i, ((1, shared), (10 + i, own)), ANSWERED) for i in range(2)]
    _, entries, result = run(demands, POOLS)
    assert result.transfer.sent_bytes == (shared + 2 * own) * TOKEN
    assert result.transfer.saved_bytes == shared * TOKEN
    assert entries[1].transfer == pytest.approx(own * TOKEN / NIC + SEND.nic_fixed)
    assert entries[1].cached == shared and result.prefix_hit_rate == pytest.approx(shared / (2 * (shared + own)))


def test_short_prompts_and_large_hits_stay_on_one_node():
    turn = ((1, 900), (ANSWER, ANSWERED), (2, 50))
    demands = [
        Demand(0.0, ((1, 900),), ANSWERED),
        Demand(0.5, turn, ANSWERED, follows=0),
        Demand(2.0, ((3, 400),), ANSWERED),
        Demand(4.0, ((4, 512),), ANSWERED),
    ]
    _, entries, result = run(demands, replace(POOLS, min_tokens=512))
    assert [entry.prefilled for entry in entries.values()] == [0, -1, -1, 0]
    assert result.transfer.requests == 2 and result.finished == 4
    assert entries[1].cached >= 900


def test_an_answer_of_one_token_needs_no_decode():
    _, entries, result = run([Demand(0.0, ((1, PROMPT),), 1)], POOLS)
    assert result.finished == 1 and result.transfer.requests == 0 and entries[0].replica == 0


def test_a_decode_pool_without_room_holds_up_the_prefill_pool():
    """Two answers fill the only decode replica; what else was computed is kept where it was until they have ended."""
    narrow = replace(FLEET, gpu_memory_utilization=0.224)
    assert narrow.capacity().num_blocks == (86,)
    demands = [Demand(0.0, ((i, 36 * 16),), 50 + i) for i in range(5)]
    simulation, entries, result = run(demands, replace(POOLS, prefill=narrow, decode=narrow, min_tokens=0))
    assert result.finished == 5 and result.preemptions == 0
    order = sorted(entries.values(), key=lambda entry: entry.last)
    # The third to arrive waited for the first to end.
    assert sorted(entry.first + entry.transfer for entry in order)[2] > order[0].last
    for replica in simulation._replicas:
        assert replica.engine.stats().blocks_used == 0


def test_a_slow_link_takes_so_many_times_as_long():
    demands = [Demand(0.0, ((1, PROMPT),), ANSWERED)]
    wire = PROMPT * TOKEN / NIC
    for name, times in (("nic", 4), ("nic1", 4), ("nic1.in", 4), ("nic1.out", 1), ("uplink", 1)):
        _, entries, _ = run(demands, POOLS, [Fault(LINK, 0, 0.0, 1e3, 4.0, name)])
        assert entries[0].transfer == pytest.approx(times * wire + SEND.nic_fixed), name
    # One that ends while it is sent leaves the other's slowness as it is.
    ends = [
        Fault(LINK, 0, 0.0, 0.0, 9.0, "nic1"),
        Fault(LINK, 0, 0.0, 1e3, 2.0, "nic0"),
        Fault(LINK, 0, 0, 1e3, 2, "nic"),
    ]
    _, entries, _ = run(demands, POOLS, ends)
    assert entries[0].transfer == pytest.approx(4 * wire + SEND.nic_fixed)


def test_looking_after_a_busy_link_costs_no_more_the_longer_it_is_busy(monkeypatch):
    due, looked = Transfers.due, []
    monkeypatch.setattr(Transfers, "due", lambda self: (looked.append(0), due(self)))
    demands = [Demand(0.04 * i, ((i, PROMPT),), ANSWERED) for i in range(40)]
    run(demands, POOLS, [Fault(LINK, 0, 0.0, 1e3, 12.0, "nic")])
    assert len(looked) < 10 * len(demands)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_replica_that_dies_in_mid_transfer_costs_no_token(victim):
    pools = replace(POOLS, prefill=replace(FLEET, replicas=2), decode=replace(FLEET, replicas=2))
    (prefill,) = prompt_s(PROMPT)
    middle = prefill + 0.5 * PROMPT * TOKEN / NIC
    _, entries, result = run([Demand(0.0, ((1, PROMPT),), ANSWERED)], pools, [Fault(DIES, victim, middle)])
    assert result.finished == result.replayed == 1
    entry = entries[0]
    assert entry.tokens == ANSWERED and entry.first == prefill
    if victim == 0:
        assert (entry.prefilled, entry.transfer) != (0, 0.0)
    else:
        # It is sent again, all of it, from where it was kept.
        assert entry.replica == 3
        assert entry.transfer == pytest.approx(middle - prefill + PROMPT * TOKEN / NIC + SEND.nic_fixed)


def test_a_replica_that_is_lost_with_a_prompt_just_computed_leaves_nothing_to_send():
    pools = replace(POOLS, prefill=replace(FLEET, replicas=2))
    simulation = Simulation([Demand(0.0, ((i, PROMPT),), ANSWERED) for i in range(2)], pools, "round-robin", 0)
    simulation.run(until=1e-4)
    (end,) = prompt_s(PROMPT)
    simulation.replica(0).catch_up(end)
    simulation._lose(0, simulation.replica(0))
    simulation.run()
    entries, result = simulation.ledger.entries, simulation.result(Slo(), 0.0)
    assert result.finished == 2 and result.transfer.requests == 2
    assert all(entry.tokens == ANSWERED and entry.prefilled == 1 for entry in entries.values())
    assert "nic1.out" in result.transfer.links and "nic0.out" not in result.transfer.links


def test_while_a_pool_is_away_the_other_does_what_it_can():
    demands = [Demand(0.5 + 0.1 * i, ((i, PROMPT),), ANSWERED) for i in range(3)]
    early = Demand(0.0, ((9, PROMPT),), ANSWERED)
    _, entries, result = run([early, *demands], POOLS, [Fault(DIES, 0, 0.4)], startup_s=100.0)
    assert result.finished == 4 and [entries[i].prefilled for i in (1, 2, 3)] == [-1] * 3
    _, entries, result = run([early, *demands], POOLS, [Fault(DIES, 1, 0.4)], startup_s=3.0)
    assert result.finished == 4 and all(entries[i].first < 3.4 < entries[i].last for i in (1, 2, 3))


TIGHT = replace(
    Asked("llama-3-8b", "h100", block_size=16, max_num_seqs=4, max_num_batched_tokens=64).fleet(),
    gpu_memory_utilization=0.2245,
)


@st.composite
def loads(draw):
    demands, at = [], 0.0
    for index in range(draw(st.integers(1, 14))):
        at += draw(st.sampled_from([0.0, 0.004, 0.05, 0.9]))
        output = draw(st.sampled_from([1, 2, 17, 300]))
        before = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        if before is not None and draw(st.booleans()):
            prompt = (*demands[before].prompt, (ANSWER, demands[before].output_len), (1000 + index, 9))
            demands.append(Demand(draw(st.sampled_from([0.0, 0.3])), prompt, output, follows=before))
            continue
        shared = (draw(st.integers(0, 2)), draw(st.sampled_from([5, 16, 90])))
        demands.append(Demand(at, (shared, (100 + index, draw(st.sampled_from([1, 33, 400, 700])))), output))
    replicas = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    guesses = draw(st.sampled_from([0, 0, 3]))
    settings = {
        "min_tokens": draw(st.sampled_from([0, 100])),
        "dtype": draw(st.sampled_from(["kv", "fp8"])),
        "incremental": draw(st.booleans()),
        "placement": draw(st.sampled_from(PLACEMENTS)),
    }
    faults = draw(
        st.lists(
            st.builds(
                Fault,
                st.sampled_from([DIES, FREEZES, SLOW, LINK]),
                st.integers(0, sum(replicas) - 1),
                st.sampled_from([0.0, 0.01, 0.04, 0.5, 1.0]),
                st.sampled_from([0.01, 1.0]),
                st.sampled_from([4.0, 1e3]),
                st.sampled_from(["nic", "nvlink0", "uplink"]),
            ),
            max_size=4,
        )
    )
    return demands, replicas, guesses, settings, draw(st.sampled_from(ROUTERS)), faults


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(loads())
def test_nothing_is_lost_and_time_adds_up(load):
    demands, replicas, guesses, settings, router, faults = load
    fleets = (replace(TIGHT, replicas=count, num_speculative_tokens=guesses) for count in replicas)
    pools = Pools(*fleets, **settings)
    simulation, entries, result = run(demands, pools, faults, router, startup_s=0.3)
    assert len(entries) == len(demands)
    for index, entry in entries.items():
        assert entry.ended != bool(entry.refused)
        if entry.ended:
            assert entry.tokens == demands[index].output_len
            assert entry.at <= entry.first <= entry.last
            assert 0 <= entry.transfer <= entry.last - entry.at
    assert result.finished + sum(result.refused.values()) == len(demands)
    # Little's law.
    stays = sum(entry.last - entry.at for entry in entries.values() if entry.ended)
    assert result.in_system * result.duration_s == pytest.approx(stays, rel=1e-5, abs=1e-5)
    for replica in simulation._replicas:
        if replica is not None:
            blocks = replica.engine._blocks
            assert (blocks.blocks_held, blocks.lent, blocks.set_aside) == (0, 0, 0)
            assert not replica.engine.has_work
    _, again, other = run(demands, pools, faults, router, startup_s=0.3)
    assert (again, other) == (entries, result)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "fp4"}, "transfer_dtype must be one of kv, fp8, int8"),
        ({"placement": "moon"}, "placement must be one of mixed, nodes, racks"),
        ({"min_tokens": -1}, "transfer_min_tokens must be at least 0"),
        ({"rack_nodes": 0}, "rack_nodes must be at least 1"),
        ({"decode": replace(FLEET, enable_prefix_caching=False)}, "enable_prefix_caching"),
    ],
)
def test_what_pools_refuse(change, says):
    with pytest.raises(ConfigError, match=says):
        replace(POOLS, **change)


def test_what_lies_behind_a_window_does_not_travel():
    layers = [
        replace(layer, attention=replace(layer.attention, window=1024)) if i % 4 else layer
        for i, layer in enumerate(FLEET.spec.layers)
    ]
    fleet = replace(FLEET, spec=replace(FLEET.spec, layers=tuple(layers)))
    size = Pools(fleet, fleet).traffic().size
    assert size(100, 0, 100) == fleet.spec.kv_bytes(100)
    assert size(5000, 0, 5000) == fleet.spec.kv_bytes(5000)
    # Windows are sent with the last tokens alone, and a hit saves what lies before it.
    whole = next(each for window, each in Pools(fleet, fleet).traffic().groups if window is None)
    assert size(2000, 0, 5000) == 2000 * whole
    assert size(5000, 0, 5000) - size(5000, 1000, 5000) == 1000 * whole
    demands = [Demand(0.0, ((1, 5000),), ANSWERED)]
    _, _, result = run(demands, Pools(fleet, fleet))
    assert result.finished == 1 and result.transfer.sent_bytes == fleet.spec.kv_bytes(5000)

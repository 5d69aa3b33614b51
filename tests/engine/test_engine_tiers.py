"""What leaves the device comes back from host and disk unchanged, ahead of its turn, and after a restart."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.engine.engine_driver import capacity, collect, expected, request, run

from headrace.core.config import Config
from headrace.core.disk import TierSizes
from headrace.engine.engine import Engine
from headrace.engine.null_disk import NullDisk
from headrace.engine.null_executor import NullExecutor

FAR = 1e9


def tiered(host, *, disk=None, disk_blocks=0, idle_s=FAR, fingerprint="f", **device):
    """An engine, and the device below it. host: blocks of each group in the host's memory."""
    settings = {k: device.pop(k) for k in tuple(device) if k in ("max_num_batched_tokens", "pipeline_depth")}
    has = capacity(**device)
    groups, size = len(has.windows), has.block_size * 8
    sizes = TierSizes((host,) * groups, (size,) * groups, disk_blocks * size, idle_s)
    has = capacity(**device, tiers=sizes)
    executor = NullExecutor(has, disk=disk)
    return Engine(executor, Config(**settings), disk=disk, fingerprint=fingerprint), has


def report(engine, one, sent):
    """The report of a request that has just run alone."""
    reports = {}
    roster = engine._scheduler._roster
    join = roster.join

    def joined(sequence, hit):
        slot_join = join(sequence, hit)
        reports[sequence.request_id] = sequence.cache
        return slot_join

    roster.join = joined
    sent |= run(engine, [one])
    roster.join = join
    return reports[one.request_id]


def prompts(count, length=12):
    return [[i, *range(length - 1)] for i in range(count)]


def test_what_is_evicted_comes_back_from_the_host():
    engine, has = tiered(20, blocks=6)
    first = request("a", prompts(1)[0], 4)
    sent = run(engine, [first])
    run(engine, [request(f"x{i}", prompt, 4) for i, prompt in enumerate(prompts(4)[1:])])
    again = request("again", first.prompt_ids, 4)
    found = report(engine, again, sent)
    assert sent["again"].tokens == expected(again, has)
    # Whole blocks only, and not the last token.
    assert (found.device, found.host, found.disk, sent["again"].cached) == (0, 8, 0, 8)


def test_what_is_idle_goes_down_before_its_place_is_needed_and_costs_nothing_then():
    engine, _ = tiered(20, blocks=6, idle_s=5)
    now = [0.0]
    sent = {}
    engine.add(request("a", prompts(1)[0], 4), 0.0)
    while engine.has_work:
        collect(engine.step(lambda: now[0]), sent)
    assert engine.next_chore(0.0) == 5
    assert engine.next_chore(4.0) == 1
    now[0] = 5.0
    assert engine.begin_step(5.0)
    collect(engine.finish_step(lambda: 5.0), sent)
    assert engine.next_chore(5.0) is None
    assert engine._blocks.tiers.host_held == 3
    # On the device it is as well, until somebody needs the place.
    again = request("again", prompts(1)[0], 4)
    assert report(engine, again, sent).device == 11


def test_the_disk_brings_back_what_the_host_has_let_go_of():
    disk = NullDisk(delay=3)
    engine, has = tiered(4, disk=disk, disk_blocks=100, blocks=6)
    asked = [request(f"r{i}", prompt, 4) for i, prompt in enumerate(prompts(6))]
    sent = {}
    for one in asked:
        sent |= run(engine, [one])
    assert len(disk.held) > 8
    again = request("again", asked[0].prompt_ids, 4)
    found = report(engine, again, sent)
    assert sent["again"].tokens == expected(again, has)
    assert (found.device, found.host, found.disk) == (0, 0, 8)


def test_who_waits_for_the_disk_holds_up_nobody():
    disk = NullDisk(delay=12)
    engine, _ = tiered(4, disk=disk, disk_blocks=100, blocks=8)
    asked = [request(f"r{i}", prompt, 4) for i, prompt in enumerate(prompts(6))]
    for one in asked:
        run(engine, [one])
    engine.settle(lambda: 0.0, 1.0)
    sent = {}
    engine.add(request("slow", asked[0].prompt_ids, 4), 0.0)
    engine.add(request("fast", [39, 38], 6), 0.0)
    while engine.has_work:
        collect(engine.step(lambda: 0.0), sent)
        if sent.get("fast") is not None and sent["fast"].reason is not None:
            break
    assert "slow" not in sent
    while engine.has_work:
        collect(engine.step(lambda: 0.0), sent)
    assert sent["slow"].cached == 8


def test_a_restart_finds_what_reached_the_disk():
    disk = NullDisk()
    engine, has = tiered(20, disk=disk, disk_blocks=100)
    first = request("a", prompts(1)[0], 6)
    sent = run(engine, [first])
    engine.settle(lambda: 0.0, 1.0)
    turn = request("b", [*first.prompt_ids, *sent["a"].tokens, 1, 1], 4)
    other, has = tiered(20, disk=disk, disk_blocks=100)
    found = report(other, turn, sent)
    assert sent["b"].tokens == expected(turn, has)
    assert (found.device, found.host, found.disk) == (0, 0, 16)
    # Of other numbers nothing is taken.
    third, _ = tiered(20, disk=disk, disk_blocks=100, fingerprint="g")
    assert report(third, turn, sent).cached_tokens == 0


def test_what_is_damaged_is_computed_again():
    disk = NullDisk()
    engine, has = tiered(20, disk=disk, disk_blocks=100)
    first = request("a", prompts(1)[0], 6)
    run(engine, [first])
    engine.settle(lambda: 0.0, 1.0)
    held = len(disk.held)
    disk.damaged = {name for name, _ in disk.held}
    other, has = tiered(20, disk=disk, disk_blocks=100)
    sent = {}
    found = report(other, request("b", first.prompt_ids, 6), sent)
    assert sent["b"].tokens == expected(first, has)
    assert found.cached_tokens == 0
    other.settle(lambda: 0.0, 1.0)
    assert len(disk.held) == held


def test_the_disk_is_bounded_and_lets_go_of_what_was_used_least_recently():
    disk = NullDisk()
    engine, _ = tiered(20, disk=disk, disk_blocks=7, blocks=40)
    asked = [request(f"r{i}", prompt, 1) for i, prompt in enumerate(prompts(5))]
    for one in asked:
        run(engine, [one])
        engine.settle(lambda: 0.0, 1.0)
    assert len(disk.held) == 7
    assert engine._blocks.tiers.disk_bytes == 7 * 32
    # A disk that holds too much from before is cut down as well.
    smaller, _ = tiered(20, disk=disk, disk_blocks=3)
    run(smaller, [request("x", [7], 1)])
    assert len(disk.held) == 3


def test_a_salt_is_part_of_a_blocks_name():
    disk = NullDisk()
    engine, _ = tiered(20, disk=disk, disk_blocks=100)
    run(engine, [request("a", prompts(1)[0], 6, cache_salt="x")])
    engine.settle(lambda: 0.0, 1.0)
    other, _ = tiered(20, disk=disk, disk_blocks=100)
    sent = {}
    assert report(other, request("b", prompts(1)[0], 6), sent).cached_tokens == 0
    assert report(other, request("c", prompts(1)[0], 6, cache_salt="x"), sent).cached_tokens == 8


STEM = [1, 2, 3, 0, 1, 2, 2, 1]


def audit(engine):
    """No host block is in two places, and what is not under way is held by nobody."""
    tiers = engine._blocks.tiers
    for group, pool in enumerate(tiers._pools):
        free, idle = pool._free[: pool.num_free].tolist(), pool.idle.blocks().tolist()
        busy = [block for _, g, block, _ in tiers._under_way.values() if g == group]
        assert sorted([*free, *idle, *set(busy)]) == list(range(pool.num_blocks))
        assert sorted(tiers._names[group]) == sorted(tiers._host[group].values())
        assert set(idle) <= set(tiers._names[group])


@pytest.mark.parametrize("windows", [(None,), (None, 6), (7,)])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_token_changes_whatever_moves(windows, data):
    """Against each request alone: tiny pools, a slow disk that may lose blocks, restarts, aborts."""
    disk = NullDisk(delay=data.draw(st.integers(0, 6)))
    depth = data.draw(st.integers(1, 2))
    shape = {
        "slots": 3,
        "blocks": data.draw(st.sampled_from([13, 14, 40])),
        "windows": windows,
        "max_model_len": 40,
        "vocab_size": 4,
        "pipeline_depth": depth,
        "max_num_batched_tokens": data.draw(st.sampled_from([3, 16])) if depth == 1 else 3,
        "idle_s": data.draw(st.sampled_from([0.0, 2.0, FAR])),
    }
    host, disk_blocks = data.draw(st.sampled_from([1, 4, 30])), data.draw(st.sampled_from([0, 5, 200]))
    engine, has = tiered(host, disk=disk if disk_blocks else None, disk_blocks=disk_blocks, **shape)
    asked, sent, now = {}, {}, [0.0]
    for step in range(data.draw(st.integers(5, 25))):
        kind = data.draw(st.sampled_from(["add", "add", "add", "run", "abort", "restart", "damage"]))
        if kind == "add":
            length, salt = data.draw(st.integers(1, 30)), data.draw(st.sampled_from(["", "", "x"]))
            prompt = [*(STEM * 4)[:length], *data.draw(st.lists(st.integers(0, 3), max_size=2))]
            one = request(f"r{step}", prompt, 5, seed=step % 2, cache_salt=salt)
            asked[one.request_id] = one
            engine.add(one, now[0])
        elif kind == "abort" and asked:
            engine.abort([data.draw(st.sampled_from(sorted(asked)))], now[0])
        elif kind == "damage" and disk.held:
            disk.damaged.add(data.draw(st.sampled_from(sorted(disk.held)))[0])
        elif kind == "restart" and not engine.has_work:
            engine.settle(lambda: now[0], 1.0)
            engine, has = tiered(host, disk=disk if disk_blocks else None, disk_blocks=disk_blocks, **shape)
            event("restarted")
        for _ in range(data.draw(st.integers(0, 8))):
            now[0] += 0.5
            collect(engine.step(lambda: now[0]), sent)
            audit(engine)
    most = 3000
    while engine.has_work:
        now[0] += 0.5
        collect(engine.step(lambda: now[0]), sent)
        audit(engine)
        most -= 1
        assert most, engine.stats()
    for name, one in asked.items():
        whole = expected(one, has)
        assert sent[name].tokens == (whole[: len(sent[name].tokens)] if sent[name].reason == "abort" else whole)
    assert engine.stats().blocks_used == 0
    event(f"host blocks used: {engine._blocks.tiers.host_held > 0}")
    event(f"disk used: {len(disk.held) > 0}")


def test_a_swapped_request_resumes_from_the_host():
    engine, has = tiered(30, blocks=14, slots=2)
    one = request("one", prompts(1, 16)[0], 20)
    engine.add(one, 0.0)
    sent = {}
    for _ in range(5):
        collect(engine.step(lambda: 0.0), sent)
    roster = engine._scheduler._roster
    roster.preempt(engine._slots[0], swap=True)
    # Others take its place on the device.
    collect(engine.finish_step(lambda: 0.0), sent)
    assert engine._blocks.tiers.host_held == 5
    taken = np.array([1], np.int32)
    assert engine._blocks.grow(taken, np.array([56], np.int32))
    engine._blocks.release(1)
    while engine.has_work:
        collect(engine.step(lambda: 0.0), sent)
    assert sent["one"].tokens == expected(one, has)


@pytest.mark.parametrize("step_s, swapped", [(1.0, True), (0.0, False)])
def test_what_a_better_class_displaces_is_swapped_where_that_pays(step_s, swapped):
    """Where steps are seen to take no time, computing again costs less than any copy."""
    engine, has = tiered(30, blocks=16, slots=1, max_model_len=48)
    low = request("low", prompts(1, 16)[0], 20, priority=1)
    engine.add(low, 0.0)
    sent, times = {}, itertools.count(step=step_s)
    for _ in range(5):
        collect(engine.step(lambda: float(next(times))), sent)
    high = request("high", [3, 4, 5], 4, priority=0)
    now = float(next(times))
    engine.add(high, now)
    engine.begin_step(now)
    assert engine._scheduler.counters.swaps == swapped
    assert (engine._blocks.tiers.host_held > 0) == swapped
    while engine.has_work:
        collect(engine.step(lambda: now), sent)
    for one in (low, high):
        assert sent[one.request_id].tokens == expected(one, has)

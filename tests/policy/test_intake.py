"""Who joins when: classes are strict, tenants share, what does not fit is passed boundedly, and no token changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.engine.engine_driver import capacity, collect, expected, request

from headrace.core.config import Config
from headrace.core.request import RequestState
from headrace.engine.engine import Engine
from headrace.engine.null_executor import NullExecutor
from headrace.policy.preemption import Patience
from headrace.policy.queue import MOST_PASSED

STAY = Patience().shortest_stay


class Watched:
    """An engine whose steps are counted, with who joined, in order, and who computed what."""

    def __init__(self, has, **settings):
        self.has = has
        self.engine = Engine(NullExecutor(has), Config(**settings))
        self.scheduler = self.engine._scheduler
        self.asked, self.sent, self.joined = {}, {}, []
        self.computed: dict[str, int] = {}
        self.steps = 0

    def add(self, name, prompt, length, **asked):
        one = request(name, prompt, length, **asked)
        self.asked[name] = one
        self.engine.add(one, float(self.steps))

    def begin(self):
        before = self.scheduler.num_steps
        began = self.engine.begin_step(float(self.steps))
        self.steps += 1
        if self.scheduler.num_steps > before:
            batch = self.scheduler.steps[-1].batch
            names = self.engine._slots.request_ids
            self.joined += [names[join.slot] for join in batch.joins]
            for slot, count in zip(batch.slots.tolist(), batch.counts.tolist(), strict=True):
                tenant = self.asked[names[slot]].tenant
                self.computed[tenant] = self.computed.get(tenant, 0) + count
        return began

    def step(self):
        while self.begin():
            pass
        deltas = self.engine.finish_step(lambda: float(self.steps))
        collect(deltas, self.sent)
        return deltas

    def drain(self, most=5000):
        while self.engine.has_work:
            self.step()
            most -= 1
            assert most > 0, self.engine.stats()
        for name, one in self.asked.items():
            assert self.sent[name].tokens == expected(one, self.has), "preemption and order change no token"

    def sequence(self, name):
        return self.scheduler._roster._sequences[name]


def could_have_joined(world, patience):
    """A waiting request for which there was room, if lower classes that may be taken from count as room; or None. Found
    from the tables alone, on pools without windows or sharing."""
    slots, blocks = world.engine._slots, world.engine._blocks
    running = [slots[slot] for slot in slots.order.tolist()]
    for waiting in world.scheduler._roster._sequences.values():
        if waiting.state is RequestState.RUNNING:
            continue
        staying = []
        for one in running:
            gained = slots.done[one.slot] + 1 - slots.start[one.slot]
            may = one.priority > waiting.priority and one.preemptions < patience.most_preemptions
            if not (may and (one.preemptions == 0 or gained >= patience.shortest_stay)):
                staying.append(one.slot)
        size = blocks.block_size
        held = sum(int(blocks._capacity[slot]) // size for slot in staying)
        promised = sum(max(0, -(-int(slots.start[s]) // size) - int(blocks._capacity[s]) // size) for s in staying)
        free = blocks.pools[0].num_blocks - held - promised - len(staying)
        if len(staying) < len(slots.sequences) and -(-waiting.needed // size) <= free:
            return waiting
    return None


arrivals = st.lists(
    st.tuples(
        st.integers(0, 3),  # steps before it
        st.integers(-1, 2),  # priority
        st.integers(1, 30),  # prompt
        st.integers(1, 16),  # output
    ),
    min_size=3,
    max_size=25,
)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(arrivals, st.integers(1, 5), st.sampled_from([12, 20, 200]), st.integers(1, 2), st.sampled_from([8, 64]))
def test_classes_are_strict(program, slots, blocks, depth, budget):
    """At no step does a request wait for what a lower class has and may be asked for, except behind one of its own
    or a better class that does not fit."""
    patience = Patience()
    has = capacity(slots=slots, block_size=4, blocks=blocks, max_model_len=48)
    world = Watched(has, max_num_batched_tokens=budget, pipeline_depth=depth, enable_prefix_caching=False)
    for i, (later, priority, prompt, length) in enumerate(program):
        for _ in range(later):
            preemptions = world.engine.stats().preemptions
            begun = world.begin()
            exhausted = world.engine.stats().preemptions > preemptions
            full = begun and world.scheduler.steps[-1].batch.num_tokens >= budget
            if begun and not exhausted and not full:
                found = could_have_joined(world, patience)
                if found is not None:
                    ahead = [
                        one
                        for one in world.scheduler._roster.queue
                        if (one.effective, one.ticket) < (found.effective, found.ticket) and one.passed >= MOST_PASSED
                    ]
                    assert ahead, f"{found.request_id} waits though there is room"
            world.step()
        world.add(f"r{i}", [i % 7] * prompt, length, seed=i, priority=priority)
    world.drain()
    event(f"preempted: {world.engine.stats().preemptions > 0}")


def test_a_better_class_takes_the_slot_of_the_latest_of_the_worst():
    world = Watched(capacity(slots=3, blocks=100))
    for name, priority in [("a", 1), ("b", 2), ("c", 2)]:
        world.add(name, [1, 2, 3], 30, priority=priority)
    world.step()
    world.add("urgent", [4], 5, priority=0)
    world.step()
    assert world.sequence("c").state is RequestState.PREEMPTED
    assert world.sequence("urgent").state is RequestState.RUNNING
    world.add("equal", [4], 5, priority=1)
    world.step()
    assert world.sequence("b").state is RequestState.PREEMPTED
    world.add("another", [4], 5, priority=1)
    world.step()
    assert world.sequence("another").state is RequestState.WAITING, "an equal class is not taken from"
    world.drain()


def test_nobody_is_preempted_where_that_would_not_make_it_fit():
    has = capacity(slots=4, block_size=4, blocks=14, max_model_len=48)
    world = Watched(has, enable_prefix_caching=False)
    world.add("same", [1] * 20, 20, priority=0)
    world.add("low", [2] * 4, 20, priority=5)
    world.step()
    world.add("large", [3] * 36, 4, priority=0)
    for _ in range(5):
        world.step()
    assert world.sequence("large").state is RequestState.WAITING
    assert world.sequence("low").preemptions == 0
    world.drain()


def test_blocks_are_taken_from_as_few_as_do():
    has = capacity(slots=8, block_size=4, blocks=26, max_model_len=48)
    world = Watched(has, enable_prefix_caching=False)
    for i in range(5):
        world.add(f"low{i}", [i] * 12, 8, priority=1)
    world.step()
    world.add("high", [9] * 34, 4, priority=0)
    world.step()
    gone = [i for i in range(5) if world.sequence(f"low{i}").state is RequestState.PREEMPTED]
    assert world.sequence("high").state is RequestState.RUNNING
    assert gone == [3, 4]
    world.drain()


def test_a_long_prompt_of_a_lower_class_does_not_hold_up_a_better_one():
    has = capacity(slots=4, block_size=4, blocks=100)
    world = Watched(has, max_num_batched_tokens=8)
    world.add("long", [1] * 60, 2, priority=1)
    world.step()
    world.add("short", [2] * 6, 4, priority=0)
    world.step()
    assert world.sent["short"].tokens, "its whole prompt goes before the next chunk"
    world.drain()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 36), st.integers(1, 10)), min_size=10, max_size=60),
    st.sampled_from([11, 14, 20]),
    st.integers(2, 8),
    st.booleans(),
)
def test_what_does_not_fit_is_passed_by_a_bounded_number(program, blocks, slots, caching):
    has = capacity(slots=slots, block_size=4, blocks=blocks, max_model_len=48)
    world = Watched(has, max_num_batched_tokens=16, enable_prefix_caching=caching)
    for i, (later, prompt, length) in enumerate(program):
        for _ in range(later):
            world.step()
        world.add(f"r{i}", [i % 5] * prompt, length, seed=i)
    world.drain()
    first = {name: place for place, name in reversed(list(enumerate(world.joined)))}
    order = [first[f"r{i}"] for i in range(len(program))]
    passed = [sum(later < mine for later in order[i + 1 :]) for i, mine in enumerate(order)]
    assert max(passed) <= MOST_PASSED
    event(f"somebody was passed: {max(passed) > 0}")


def test_a_stream_of_small_requests_does_not_starve_a_large_one():
    has = capacity(slots=8, block_size=4, blocks=16, max_model_len=60)
    world = Watched(has, max_num_batched_tokens=16, enable_prefix_caching=False)
    count = 0
    for _ in range(3):
        world.add(f"s{count}", [1] * 3, 6, seed=count)
        count += 1
    world.step()
    world.add("large", [7] * 50, 4)
    while "large" not in world.joined:
        world.add(f"s{count}", [1] * 3, 6, seed=count)
        count += 1
        world.step()
        assert world.steps < 200, "starved"
    after = len(set(world.joined)) - 1 - 3
    assert 0 < after <= MOST_PASSED, "some pass while it does not fit, and no more than may"
    world.drain()


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(1, 14), st.integers(1, 10)), min_size=80, max_size=80),
    st.integers(1, 5),
    st.sampled_from([8, 64]),
    st.booleans(),
)
def test_backlogged_tenants_get_the_same_within_a_bound(sizes, slots, budget, floods):
    """The theorem of the counters' authors: two tenants that both always wait differ by at most twice what may run at
    once, however unequal their requests and the order in which they came."""
    longest = 24
    has = capacity(slots=slots, block_size=4, blocks=200, max_model_len=longest)
    world = Watched(has, max_num_batched_tokens=budget, enable_prefix_caching=False)
    half = len(sizes) // 2
    tenants = ["a"] * half + ["b"] * half if floods else ["a", "b"] * half
    for i, ((prompt, length), tenant) in enumerate(zip(sizes, tenants, strict=True)):
        small = tenant == "b"
        world.add(f"r{i}", [1] * (prompt // 4 + 1 if small else prompt), length, seed=i, tenant=tenant)
    most = 0
    while True:
        world.step()
        waiting = {one.tenant for one in world.scheduler._roster.queue}
        if len(waiting) < 2:
            break
        most = max(most, abs(world.computed.get("a", 0) - world.computed.get("b", 0)))
    assert most <= 2 * slots * longest
    world.drain()


def test_shares_are_as_the_weights():
    has = capacity(slots=4, block_size=4, blocks=200)
    world = Watched(has, enable_prefix_caching=False)
    world.engine._queue.accounts._weight = {"heavy": 3.0, "light": 1.0}.__getitem__
    for i in range(160):
        world.add(f"r{i}", [i % 5] * (1 + i % 9), 6, seed=i, tenant=("heavy", "light")[i % 2])
    while {one.tenant for one in world.scheduler._roster.queue} == {"heavy", "light"}:
        world.step()
    assert world.computed["heavy"] / world.computed["light"] == pytest.approx(3.0, rel=0.2)
    world.drain()


def test_cached_tokens_cost_nothing():
    has = capacity(slots=2, block_size=4, blocks=200)
    world = Watched(has)
    world.add("warm", range(41), 2, tenant="cached")
    world.drain()
    for i in range(40):
        world.add(f"c{i}", range(41), 4, seed=i, tenant="cached")
        world.add(f"u{i}", [i, *range(40)], 4, seed=i, tenant="uncached")
    while {one.tenant for one in world.scheduler._roster.queue} == {"cached", "uncached"}:
        world.step()
    tenants = [name[0] for name in world.joined[1:]]
    assert tenants.count("c") > 4 * tenants.count("u")
    world.drain()


def test_a_request_that_was_preempted_often_is_immune():
    has = capacity(slots=1, block_size=4, blocks=100, max_model_len=120)
    world = Watched(has, max_preemptions=2)
    world.add("low", [1, 2], 100, priority=1)
    world.step()
    named = []
    for i in range(40):
        before = world.sequence("low").preemptions if "low" in world.scheduler else 0
        world.add(f"high{i}", [3], 2, priority=0)
        for _ in range(4):
            world.step()
            if "low" in world.scheduler and world.sequence("low").preemptions > before:
                named.append(len(world.sequence("low").tokens))
                before = world.sequence("low").preemptions
    assert len(named) == 2, "as often as allowed, and then no more"
    assert named[1] - named[0] >= STAY, "it stays until it has gained something"
    world.drain()


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(arrivals, st.integers(1, 3), st.integers(0, 3))
def test_nobody_is_preempted_for_others_more_often_than_allowed_or_in_vain(program, slots, allowed):
    has = capacity(slots=slots, block_size=4, blocks=300, max_model_len=48)
    world = Watched(has, max_preemptions=allowed, max_num_batched_tokens=16)
    gained: dict[str, list[int]] = {}
    for i, (later, priority, prompt, length) in enumerate(program):
        world.add(f"r{i}", [i % 7] * prompt, length, seed=i, priority=priority)
        for _ in range(later):
            world.step()
            for one in world.scheduler._roster._sequences.values():
                lengths = gained.setdefault(one.request_id, [])
                if one.preemptions > len(lengths):
                    lengths.append(len(one.tokens))
    world.drain()
    for lengths in gained.values():
        assert len(lengths) <= allowed, "blocks never run out here"
        assert all(np.diff(lengths) >= STAY)


def test_ageing_lets_a_low_class_run_but_not_take():
    has = capacity(slots=1, block_size=4, blocks=100)
    world = Watched(has, priority_aging_s=10.0)
    world.add("running", [1], 30, priority=0)
    world.step()
    world.add("low", [2], 2, priority=1)
    for i in range(20):
        world.add(f"later{i}", [3], 2, priority=0, seed=i)
        world.step()
    assert world.sequence("low").effective == 0
    assert world.sequence("running").preemptions == 0, "preemption compares the classes that were asked for"
    world.drain()
    assert world.joined.index("low") < world.joined.index("later19"), "but it goes before those that came later"


def test_no_more_wait_for_a_common_prefix_than_can_run():
    """A thousand requests with one system prompt are not all looked at in the step in which the first begins it."""
    has = capacity(slots=4, block_size=4, blocks=200)
    world = Watched(has, max_num_batched_tokens=8)
    looked, lookup = [], world.engine._blocks.lookup

    def counted(*args, **asked):
        looked.append(args)
        return lookup(*args, **asked)

    world.engine._blocks.lookup = counted
    for i in range(100):
        world.add(f"r{i}", [*range(30), i % 50], 2, seed=i)
    world.step()
    assert len(looked) < 3 * 4
    world.drain()
    cached = world.engine.stats().cached_tokens
    assert cached > 95 * 28, "and all but the first find it"


def test_a_better_class_does_not_wait_for_the_prefix_of_a_worse_one():
    has = capacity(slots=4, block_size=4, blocks=200)
    world = Watched(has, max_num_batched_tokens=8)
    world.add("low", range(50), 2, priority=1)
    world.step()
    world.add("high", [*range(48), 7], 2, priority=0)
    world.step()
    assert world.sequence("high").state is RequestState.RUNNING
    world.drain()

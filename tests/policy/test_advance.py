"""k steps taken as one leave what k single steps leave: tokens, tables, pools, cache and time, bit for bit."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.engine.engine_driver import Collected, capacity, collect, expected, request

from headrace.core.config import Config
from headrace.engine.engine import Engine
from headrace.engine.null_executor import NullExecutor
from headrace.policy.latency import LinearPrior

PACE = LinearPrior(step=0.013, token=0.0017, request=0.00031, context=1.1e-5, pair=3e-6, row=0.0007)


class World:
    """An engine on a device that keeps time; requests arrive at the first step that begins after their time."""

    def __init__(self, has, longest, arrivals, **settings):
        self.device = NullExecutor(has, pace=PACE, longest=longest)
        self.engine = Engine(self.device, Config(**settings), prior=PACE)
        self.arrivals = list(arrivals)
        self.sent: dict[str, Collected] = {}
        self.ended: dict[str, float] = {}
        self.taken_as_one = 0

    def step(self):
        """One call of the engine; False at the end."""
        if not self.engine.has_work and self.arrivals:
            self.device.time = max(self.device.time, self.arrivals[0][0])
        while self.arrivals and self.arrivals[0][0] <= self.device.time:
            self.engine.add(self.arrivals.pop(0)[1], self.device.time)
        self.device.until = self.arrivals[0][0] if self.arrivals else float("inf")
        if not self.engine.has_work:
            return False
        self.engine.begin_step(self.device.time)
        steps = self.engine._scheduler.steps
        self.taken_as_one = max(self.taken_as_one, steps[-1].batch.steps if steps else 0)
        deltas = self.engine.finish_step(lambda: self.device.time)
        collect(deltas, self.sent)
        self.ended |= {delta.request_id: self.device.time for delta in deltas if delta.finish_reason}
        return True

    def state(self):
        """Everything that later steps depend on, as one comparable value."""
        slots, blocks = self.engine._slots, self.engine._blocks
        taken = slots.order.tolist()
        found = {name: getattr(slots, name)[taken].tolist() for name in ("known", "computed", "done", "priority")}
        found["ids"] = slots.request_ids[taken].tolist()
        found["tokens"] = [slots.named(slot).tolist() for slot in taken]
        for group, pool in enumerate(blocks.pools):
            found[f"refs {group}"] = pool.refs.tolist()
            found[f"epochs {group}"] = pool.epochs.tolist()
            found[f"cached {group}"] = pool.cached.tolist()
            found[f"free {group}"] = pool._free[: pool._num_free].tolist()
            found[f"tables {group}"] = [
                blocks._tables[group][s, blocks._first[group, s] : blocks._capacity[s] // blocks.block_size].tolist()
                for s in taken
            ]
        found["time"] = self.device.time
        # The latency model learns from single steps only.
        found["stats"] = msgspec.structs.replace(self.engine.stats(), latency_error=None, predicted_wait=0.0)
        return found


@st.composite
def loads(draw):
    size = draw(st.sampled_from([2, 4, 16]))
    windows = draw(st.sampled_from([(None,), (None, 5), (7,)]))
    budget = draw(st.sampled_from([8, 64]))
    blocks = -(-60 // size) + draw(st.sampled_from([0, 2, 8, 100]))
    counts = tuple(blocks if w is None else max(blocks, (w + budget) // size + 3) for w in windows)
    slots = draw(st.integers(1, 5))
    has = capacity(slots=slots, block_size=size, blocks=counts, windows=windows, max_model_len=60, vocab_size=1000)
    time, arrivals = 0.0, []
    for i in range(draw(st.integers(1, 8))):
        time += draw(st.sampled_from([0.0, 0.0, 0.05, 0.3, 0.7]))
        prompt = [i % 3] * draw(st.integers(1, 12))
        asked = {"priority": draw(st.integers(0, 1)), "logprobs": draw(st.sampled_from([None, None, None, 1]))}
        arrivals.append((time, request(f"r{i}", prompt, draw(st.integers(1, 48)), seed=i, **asked)))
    return has, arrivals, {"max_num_batched_tokens": budget, "enable_prefix_caching": draw(st.booleans())}


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(loads(), st.sampled_from([2, 3, 7, 1000]))
def test_steps_taken_as_one_are_the_steps(load, longest):
    has, arrivals, config = load
    many, single = World(has, longest, arrivals, **config), World(has, 1, arrivals, **config)
    while many.step():
        while single.engine.stats().step < many.engine.stats().step:
            assert single.step()
        assert many.state() == single.state()
    assert not single.step()
    assert many.ended == single.ended
    for _, one in arrivals:
        got, alone = many.sent[one.request_id], single.sent[one.request_id]
        assert got.tokens == alone.tokens == expected(one, has)
        assert got.reason == alone.reason
    event(f"steps taken as one: {min(many.taken_as_one, 8)}")


def test_a_long_decode_is_few_calls():
    has = capacity(slots=4, block_size=4, blocks=200, max_model_len=64)
    world = World(has, 1000, [(0.0, request(f"r{i}", [i], 40 + 5 * i, seed=i)) for i in range(4)])
    calls = 0
    while world.step():
        calls += 1
    assert world.engine.stats().step > 50
    assert calls < 25


def test_an_arrival_is_not_waited_for():
    has = capacity(slots=4, block_size=4, blocks=200, max_model_len=64)
    late = request("late", [9], 4)
    world = World(has, 1000, [(0.0, request("early", [1], 60)), (0.5, late)])
    first = None
    while world.step():
        if first is None and "late" in world.sent:
            first = world.device.time
    one_step = PACE.step + 3 * (PACE.token + PACE.row + PACE.request) + 200 * PACE.context
    assert 0.5 < first < 0.5 + 2 * one_step


@pytest.mark.parametrize("asked", [{"eos_ids": (999,)}, {"stop_token_ids": (999,)}])
def test_where_a_stop_may_come_steps_are_single(asked):
    has = capacity(vocab_size=1000)
    world = World(has, 1000, [(0.0, request("r", [1], 40, **asked))])
    while world.step():
        pass
    assert world.taken_as_one == 1


def test_a_device_that_promised_too_much_is_found_out():
    has = capacity(vocab_size=1000)
    one = request("r", [1], 40)
    stop = expected(one, has)[20]

    class Careless(NullExecutor):
        def horizon(self):
            return 1000

    engine = Engine(Careless(has), Config())
    engine.add(request("r", [1], 40, stop_token_ids=(stop,)), 0.0)
    with pytest.raises(ValueError, match="taken as one"):
        while engine.has_work:
            engine.step(lambda: 0.0)


def test_an_abort_while_several_steps_are_under_way_drops_what_they_bring():
    has = capacity(slots=2, vocab_size=1000)
    device = NullExecutor(has, longest=1000)
    engine = Engine(device, Config())
    requests = [request(f"r{i}", [i], 40, seed=i) for i in range(2)]
    for one in requests:
        engine.add(one, 0.0)
    sent = {}
    while True:
        engine.begin_step(0.0)
        if engine._scheduler.steps[-1].batch.steps > 1:
            break
        collect(engine.finish_step(lambda: 0.0), sent)
    engine.abort(["r0"], 0.0)
    collect(engine.finish_step(lambda: 0.0), sent)
    before = len(sent["r0"].tokens)
    while engine.has_work:
        collect(engine.step(lambda: 0.0), sent)
    assert before < 5 and len(sent["r0"].tokens) == before
    assert sent["r1"].tokens == expected(requests[1], has)
    assert np.count_nonzero(engine._blocks.pools[0].refs) == 0

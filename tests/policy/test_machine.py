"""A hundred thousand operations on scheduler and blocks in any order: what a request is sent never depends on them, no
block is owned twice, the tree says what the device holds, nobody is lost or forgotten, and at the end all is free.
The report at the end (pytest -rA) says which operations were drawn and which states were reached.
"""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.policy.machine import MAX_LEN, STEMS, Shape, World
from tests.policy.worlds import FORM, run_world

OPERATIONS = 100_000
REACHED = {
    "a wait for another's prefix",
    "a wait for the disk",
    "a wait for a form",
    "abort: decode",
    "abort: decode, under way",
    "abort: end not sent yet",
    "abort: ended",
    "abort: preempted",
    "abort: prompt",
    "abort: prompt, under way",
    "abort: refused",
    "abort: waiting",
    "abort: waiting for a form",
    "abort: waiting for a prefix",
    "block shared",
    "block turned to an equal one",
    "cached block evicted",
    "disk: block damaged",
    "disk: block let go",
    "disk: block read",
    "disk: block written",
    "drained",
    "end: abort",
    "end: crash",
    "end: length",
    "end: nan",
    "end: no token wanted",
    "end: stop",
    "better class joined before a waiting one",
    "end: deadline",
    "part of a block copied",
    "preempted one resumed",
    "preemption: for a better class",
    "preemption: for blocks",
    "refused: too late",
    "prefix hit",
    "prompt scored",
    "recovery: nobody at fault",
    "recovery: several steps under way",
    "refused: never fits",
    "refused: queue full",
    "restart with blocks on disk",
    "rule: replay",
    "rule: restart",
    "steps taken as one",
    "steps under way: 2 or more",
    "swap: block copied down",
    "swap: block copied up",
    "tokens guessed ahead",
    "a wrong guess taken back",
}


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Devices fail here all the time, and each failure is logged with its traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def operations(seen: Counter) -> int:
    """How many there were, without those that found nothing to do."""
    done = (count for name, count in seen.items() if name.startswith("rule: "))
    return sum(done) - seen["rule: finish nothing"]


@pytest.mark.timeout(600)
def test_a_hundred_thousand_operations_reach_every_state():
    seen: Counter = Counter()
    seed = 0
    while operations(seen) < OPERATIONS:
        run_world(seed, 250, seen)
        seed += 1
    for name, count in sorted(seen.items()):
        print(f"{count:>8}  {name}")
    assert not {name for name in REACHED if not seen[name]}, "states that were never reached"


PROMPTS = st.builds(
    lambda stem, length, tail: STEMS[stem][:length] + tail,
    st.integers(0, 1),
    st.integers(0, 25),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)


@st.composite
def shapes(draw):
    size, depth = draw(st.sampled_from([2, 4, 16])), draw(st.integers(1, 3))
    budget = draw(st.sampled_from([1, 3, 16, 64]))
    windows = draw(st.sampled_from([(None,), (None, 5), (7,)]))
    blocks = -(-MAX_LEN // size) + draw(st.sampled_from([0, 1, 6, 200]))
    counts = tuple(blocks if w is None else max(blocks, (w + budget * depth) // size + 3) for w in windows)
    slots, caching = draw(st.sampled_from([1, 2, 4])), draw(st.booleans())
    host, disk = draw(st.sampled_from([(0, 0), (6, 0), (8, 20)]))
    wrong = draw(st.sampled_from([None, 0, 2, 5]))
    return Shape(slots, size, counts, windows, 4, budget, depth, caching, host=host, disk=disk, wrong=wrong)


class Machine(RuleBasedStateMachine):
    @initialize(shape=shapes())
    def begin_world(self, shape):
        self.world = World(shape)

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(0, 14),
        salt=st.sampled_from(["", "x"]),
        eos_ids=st.sampled_from([(), (0,)]),
        scored=st.sampled_from([None, None, 0]),
        structured_outputs=st.sampled_from([None, None, FORM]),
        fault=st.sampled_from(["", "", "", "nan"]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from(["", "a"]),
    )
    def add(self, prompt, max_tokens, salt, eos_ids, scored, **more):
        max_tokens = min(max_tokens, MAX_LEN - len(prompt))
        asked = {"prompt": prompt, "max_tokens": max_tokens, "cache_salt": salt, "eos_ids": eos_ids, **more}
        self.world.add(**asked, prompt_logprobs=scored)

    @precondition(lambda self: self.world.asked)
    @rule(index=st.integers(0, 30))
    def abort(self, index):
        self.world.abort(index)

    @rule()
    def begin(self):
        self.world.begin()

    @rule()
    def finish(self):
        self.world.finish()

    @rule(count=st.integers(1, 6))
    def steps(self, count):
        for _ in range(count):
            self.world.step()

    @rule()
    def flaky(self):
        self.world.flaky()

    @rule()
    def restart(self):
        self.world.restart()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.drain()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

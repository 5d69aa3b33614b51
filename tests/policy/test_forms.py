"""Requests whose form is not ready wait beside the queue: steps go on without them, those behind them are served, and
they come back to their own place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.engine_driver import capacity, collect, expected, request
from tests.policy.late_forms import LateForms

from headrace.core.config import Config
from headrace.core.request import ErrorCode, FinishReason
from headrace.core.structured import StructuredOutputsParams
from headrace.engine.engine import Engine
from headrace.engine.null_executor import NullExecutor

FORM = StructuredOutputsParams(choice=["x"])


class World:
    """An engine whose forms are ready when the test says so."""

    def __init__(self, *, slots=2, **settings):
        self.has = capacity(slots=slots)
        self.forms = LateForms(share=0.0)
        self.engine = Engine(NullExecutor(self.has), Config(max_model_len=64, **settings), forms=self.forms)
        self.sent, self.asked, self.joined = {}, {}, []
        self.now = 0.0

    def add(self, name, *, length=4, form=FORM, prompt=(1, 2, 3), **asked):
        self.asked[name] = request(name, prompt, length, structured_outputs=form, **asked)
        self.engine.add(self.asked[name], self.now)

    def step(self, times=1):
        """Deltas by request in the last of these steps."""
        deltas = []
        for _ in range(times):
            self.now += 1.0
            self.engine.begin_step(self.now)
            scheduler = self.engine._scheduler
            if scheduler.steps:
                names = self.engine._slots.request_ids
                self.joined += [names[join.slot] for join in scheduler.steps[-1].batch.joins]
            deltas = self.engine.finish_step(lambda: self.now)
            collect(deltas, self.sent)
        return {delta.request_id: delta for delta in deltas}

    def drain(self):
        for _ in range(500):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work
        for name, one in self.asked.items():
            if self.sent[name].reason in (FinishReason.LENGTH, FinishReason.STOP):
                assert self.sent[name].tokens == expected(one, self.has)


def test_other_streams_get_a_token_in_every_step_while_a_form_is_compiled():
    world = World()
    world.add("stream", length=12, form=None)
    world.step()
    world.add("formed")
    for _ in range(8):
        assert list(world.step()) == ["stream"]
    world.forms.held["formed"] = True
    # The step that ends finds it ready; it joins the next.
    world.step()
    assert set(world.step()) == {"stream", "formed"}
    world.drain()


def test_those_behind_are_served_and_the_place_is_kept():
    world = World(slots=1, enable_prefix_caching=False)
    world.add("first")
    world.add("second", form=None)
    world.add("third", form=None)
    world.step()
    assert world.joined == ["second"]
    world.forms.held["first"] = True
    world.drain()
    assert world.joined == ["second", "first", "third"]


def test_a_form_is_held_from_the_first_look_until_the_request_has_ended():
    world = World(slots=1)
    world.add("runs", form=None, length=3)
    world.step()
    world.add("formed")
    assert not world.forms.held, "nothing is compiled before it is its turn"
    world.step(2)
    world.engine.begin_step(9.0)
    assert world.forms.held == {"formed": False}
    world.step(2)
    assert world.forms.held == {"formed": True}
    world.drain()
    assert not world.forms.held


def test_with_nothing_else_to_do_the_engine_waits_for_the_form():
    world = World()
    world.add("formed")
    world.drain()
    assert len(world.sent["formed"].tokens) == 4


@pytest.mark.parametrize("running", [False, True])
def test_abort_while_the_form_is_compiled(running):
    world = World()
    if running:
        world.add("stream", length=12, form=None)
    world.add("formed")
    world.engine.begin_step(0.5)
    world.engine.abort(["formed"], 1.0)
    assert not world.forms.held
    world.drain()
    assert world.sent["formed"].reason is FinishReason.ABORT
    assert world.engine.stats().waiting == 0


def test_a_deadline_passes_while_the_form_is_compiled():
    world = World()
    world.add("stream", length=12, form=None)
    world.add("formed", deadline=3.0)
    deltas = [world.step().get("formed") for _ in range(6)]
    ended = next(delta for delta in deltas if delta is not None)
    assert (ended.finish_reason, ended.code) == (FinishReason.ERROR, ErrorCode.DEADLINE_EXCEEDED)
    assert not world.forms.held
    world.drain()


def test_a_preempted_request_does_not_wait_for_its_form_again():
    world = World(slots=1)
    world.forms.held["low"] = True
    world.add("low", length=12, priority=1)
    world.step(10)
    world.add("high", form=None, priority=-1)
    world.drain()
    assert world.joined == ["low", "high", "low"]


def test_a_form_that_is_not_ready_takes_nobodys_place():
    world = World(slots=1)
    world.add("low", length=30, form=None, priority=1)
    world.step(10)
    world.add("high", priority=-1)
    world.step(3)
    assert world.engine.stats().preemptions == 0
    world.forms.held["high"] = True
    world.step(2)
    assert world.engine.stats().preemptions == 1
    world.drain()


def test_what_a_request_waited_for_is_told():
    world = World()
    world.add("formed")
    world.engine.begin_step(1.0)
    world.engine.begin_step(3.0)
    (record,), _ = world.engine.inspect("formed", 0, 4.0)
    assert record.waited_for["form"] == 3.0
    world.drain()


def test_so_many_wait_for_forms_at_a_time_and_all_are_served():
    world = World(slots=2, enable_prefix_caching=False)
    for number in range(70):
        world.add(f"r{number}", length=2)
    world.engine.begin_step(1.0)
    assert len(world.forms.held) == 65, "64 beside the queue and the one at its head"
    world.drain()
    assert all(one.reason is FinishReason.LENGTH for one in world.sent.values())
    assert len(world.sent) == 70


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 6)), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(0, 2**16),
)
def test_no_token_depends_on_when_a_form_is_ready(arrivals, slots, seed):
    world = World(slots=slots)
    world.forms = world.engine._forms = world.engine._scheduler._roster._forms = LateForms(seed, 0.3)
    for number, (later, formed, length) in enumerate(arrivals):
        world.step(later)
        world.add(f"r{number}", length=length, form=FORM if formed else None, prompt=(number % 3 + 1, 2, 3))
    world.drain()
    assert len(world.sent) == len(arrivals)
    assert not world.forms.held

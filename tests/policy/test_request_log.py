"""What the log says of requests that an engine ran: how long they waited, for what, and who gave way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.engine_driver import capacity, make_engine, request, run

from headrace.core.errors import OverloadedError
from headrace.policy.cache_report import Miss


class Clock:
    """Says the same time until it is set."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def record(engine, request_id, now=0.0):
    (found,) = engine.inspect(request_id, 0, now)[0]
    return found


def test_a_request_from_arrival_to_end():
    engine, clock = make_engine(capacity(slots=1)), Clock()
    engine.add(request("first", range(5), 3), 0.0)
    engine.step(clock)
    clock.now = 1.0
    engine.add(request("second", range(7), 2, tenant="alice", deadline=60.0), 1.0)
    engine.add(request("third", range(7), 2), 1.0)
    clock.now = 4.0
    waiting = record(engine, "second", 4.0)
    assert (waiting.state, waiting.position, waiting.age_s, waiting.waited_s) == ("waiting", 1, 3.0, 3.0)
    assert record(engine, "third", 4.0).position == 2
    engine.step(clock)
    engine.step(clock)
    clock.now = 6.0
    engine.step(clock)
    clock.now = 7.5
    engine.step(clock)
    done = record(engine, "second", 9.0)
    assert (done.state, done.finish_reason, done.generated_tokens, done.prompt_tokens) == ("finished", "length", 2, 7)
    assert (done.begun_after_s, done.ended_after_s, done.waited_s) == (5.0, 6.5, 5.0)
    # The step that ran when it came had nobody waiting; those after it had no slot left.
    assert done.waited_for == {"step": 3.0, "slots": 2.0}
    assert (done.tenant, done.deadline_s, done.position, done.predicted_wait_s) == ("alice", 60.0, None, None)


def test_choices_are_found_by_the_id_of_the_clients_request():
    engine = make_engine()
    run(engine, [request(f"chat-1-{choice}", range(4), 2, choice=choice) for choice in range(3)])
    run(engine, [request("chat-11-0", range(4), 2)])
    assert [r.request_id for r in engine.inspect("chat-1", 0, 0.0)[0]] == ["chat-1-0", "chat-1-1", "chat-1-2"]
    assert [r.request_id for r in engine.inspect("chat-1-2", 0, 0.0)[0]] == ["chat-1-2"]
    assert [r.request_id for r in engine.inspect("chat-11", 0, 0.0)[0]] == ["chat-11-0"]
    assert engine.inspect("chat-", 0, 0.0)[0] == engine.inspect("unknown", 0, 0.0)[0] == []


def test_cached_tokens_are_those_of_the_first_time_it_ran():
    engine = make_engine()
    run(engine, [request("a", range(12), 2)])
    run(engine, [request("b", range(12), 2)])
    assert record(engine, "a").cached_tokens == 0
    assert record(engine, "b").cached_tokens > 8


def test_each_preemption_is_told_with_the_time_it_was_away():
    engine, clock = make_engine(capacity(slots=2, blocks=8), enable_prefix_caching=False), Clock()
    engine.add(request("a", [1] * 10, 20), 0.0)
    engine.add(request("b", [2] * 10, 20), 0.0)
    while not engine.stats().preemptions:
        engine.step(clock)
    clock.now = 5.0
    assert record(engine, "b", 5.0).state == "preempted"
    while engine.has_work:
        engine.step(clock)
    told = record(engine, "b", 5.0)
    assert told.num_preemptions == len(told.preemptions) == 1
    assert (told.preemptions[0].after_s, told.preemptions[0].resumed_after_s) == (0.0, 5.0)
    assert (told.waited_s, told.waited_for) == (5.0, {"blocks": 5.0})
    assert record(engine, "a").num_preemptions == 0


def test_what_was_refused_leaves_no_record():
    engine = make_engine(capacity(slots=1), max_queued_requests=0)
    engine.add(request("a", [1], 4), 0.0)
    with pytest.raises(OverloadedError):
        engine.add(request("b", [1], 4), 0.0)
    assert engine.inspect("b", 0, 0.0)[0] == []


def test_only_the_last_that_ended_are_remembered():
    engine = make_engine(request_log=5)
    run(engine, [request(f"r{i}", [1], 1) for i in range(9)])
    assert len(engine.journal.log) == 5
    assert engine.inspect("r3", 0, 0.0)[0] == []
    assert record(engine, "r4").finish_reason == "length"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=20))
def test_times_add_up_whatever_happens(arrivals):
    """waited_for adds up to waited_s, and what waited and ran is no longer than its life."""
    engine, clock = make_engine(capacity(slots=3, blocks=12), max_num_batched_tokens=16), Clock()
    for number, (pause, prompt, output) in enumerate(arrivals):
        clock.now += pause
        engine.add(request(f"r{number}", range(prompt), output), clock.now)
        engine.step(clock)
    while engine.has_work:
        clock.now += 1.0
        engine.step(clock)
    for number in range(len(arrivals)):
        told = record(engine, f"r{number}", clock.now)
        assert sum(told.waited_for.values()) == pytest.approx(told.waited_s)
        away = sum(p.resumed_after_s - p.after_s for p in told.preemptions)
        assert told.waited_s == pytest.approx(told.begun_after_s + away)
        assert told.waited_s <= told.ended_after_s <= told.age_s


def test_who_took_a_place_is_named():
    engine = make_engine(capacity(slots=1))
    engine.add(request("batch", range(5), 30, priority=1), 0.0)
    for now in range(20):
        engine.step(lambda now=now: float(now))
    engine.add(request("vip", range(5), 30, priority=-1), 20.0)
    engine.step(lambda: 21.0)
    assert [(p.by, p.after_s, p.kind) for p in record(engine, "batch").preemptions] == [("vip", 21.0, "recompute")]
    assert engine.stats().preemptions_by_kind == [("recompute", "priority", 1)]
    assert record(engine, "vip", 21.0).state == "running"


def test_where_a_prompt_goes_its_own_way_is_told_to_the_token():
    engine = make_engine()
    run(engine, [request("a", [1, 2, 3, 4, 5, 6, 7], 2)])
    run(engine, [request("b", [1, 2, 3, 4, 5, 9, 7], 2)])
    cache = record(engine, "b").cache
    assert (cache.cached_tokens, cache.miss, cache.at, cache.token, cache.others) == (5, Miss.DIVERGED, 5, 9, (6,))
    assert engine.stats().hits_by_tier == {"device": 5, "host": 0, "disk": 0}


def test_evictions_are_told_with_their_time():
    engine = make_engine(capacity(blocks=8))
    run(engine, [request("a", range(20), 4)])
    run(engine, [request("b", range(30, 44), 4)])
    run(engine, [request("again", range(20), 4)])
    told = record(engine, "again", 3.0)
    assert (told.cache.miss, told.cache.evicted_for, told.evicted_ago_s) == (Miss.EVICTED, "b", 3.0)

"""The last steps of an engine: what they computed and why those who waited did not run."""

from __future__ import annotations

from tests.engine.engine_driver import capacity, make_engine, request, run

from headrace.policy.holdup import Holdup


def steps(engine, count=100):
    return engine.inspect("", count, 0.0)[1]


def test_it_says_what_a_step_computed_and_who_waits_for_what():
    engine = make_engine(capacity(slots=2), max_num_batched_tokens=16)
    for token, name in enumerate(("a", "b", "c")):
        engine.add(request(name, [token] * 10, 3), 0.0)
    times = iter([1.0, 1.5, 1.75, 1.75])
    engine.step(lambda: next(times))
    (first,) = steps(engine)
    assert (first.step, first.requests, first.tokens, first.budget, first.joined) == (1, 2, 16, 16, 2)
    assert (first.running, first.waiting, first.held_up_by, first.next) == (2, 1, Holdup.SLOTS, "c")
    assert first.begun_s == 1.0 and first.took_ms > 0 and first.predicted_ms > 0
    run(engine)
    last = steps(engine)[0]
    assert (last.waiting, last.held_up_by, last.next) == (0, None, None)


def test_it_names_the_prefix_where_another_computes_it():
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(request("a", range(20), 3), 0.0)
    engine.add(request("b", range(20), 3), 0.0)
    for _ in range(2):
        engine.step(lambda: 0.0)
    assert (steps(engine)[0].waiting, steps(engine)[0].held_up_by) == (1, Holdup.PREFIX)
    run(engine)
    assert engine.inspect("b", 0, 0.0)[0][0].prefix_of == "a"


def test_it_names_tokens_and_blocks_where_those_are_short():
    engine = make_engine(capacity(slots=3), max_num_batched_tokens=8)
    for token, name in enumerate(("a", "b", "c")):
        engine.add(request(name, [token] * 20, 3), 0.0)
    engine.step(lambda: 0.0)
    assert (steps(engine)[0].held_up_by, steps(engine)[0].next) == (Holdup.TOKENS, "b")
    engine = make_engine(capacity(slots=3, blocks=8), enable_prefix_caching=False)
    engine.add(request("a", [1] * 20, 8), 0.0)
    engine.add(request("b", [2] * 20, 8), 0.0)
    engine.step(lambda: 0.0)
    assert (steps(engine)[0].held_up_by, steps(engine)[0].next) == (Holdup.BLOCKS, "b")


def test_preemptions_are_counted_in_their_step():
    engine = make_engine(capacity(slots=2, blocks=8), enable_prefix_caching=False)
    run(engine, [request("a", [1] * 10, 20), request("b", [2] * 10, 20)])
    assert sum(step.preempted for step in steps(engine)) == engine.stats().preemptions > 0


def test_only_the_last_steps_are_kept_the_newest_first_or_none():
    engine = make_engine(step_ring=5)
    run(engine, [request("a", [1], 30)])
    assert [step.step for step in steps(engine)] == [30, 29, 28, 27, 26]
    assert len(steps(engine, 2)) == 2
    engine = make_engine(step_ring=0)
    run(engine, [request("a", [1], 30)])
    assert steps(engine) == []

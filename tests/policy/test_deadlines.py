"""Deadlines against a plain dict: each is told once, when its time has come, unless it was removed before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.deadlines import Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 50)),
        st.tuples(st.just("remove"), st.integers(0, 300)),
        st.tuples(st.just("pass"), st.integers(0, 10)),
    ),
    max_size=300,
)


@given(STEPS)
def test_each_is_told_once_when_its_time_has_come(steps):
    deadlines, model, now, made = Deadlines(), {}, 0, 0
    for what, number in steps:
        if what == "add":
            deadlines.add(f"r{made}", now + number)
            model[f"r{made}"] = now + number
            made += 1
        elif what == "remove":
            deadlines.remove(f"r{number}")
            model.pop(f"r{number}", None)
        else:
            now += number
            late = deadlines.passed(now)
            assert sorted(late) == sorted(i for i, at in model.items() if at <= now)
            assert [model[i] for i in late] == sorted(model[i] for i in late)
            for request_id in late:
                del model[request_id]
        assert len(deadlines) == len(model)


def test_what_was_removed_is_not_kept_for_ever():
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.add(f"r{number}", 1e9)
        deadlines.remove(f"r{number}")
    assert len(deadlines._heap) <= 65

"""The sums of what waits, against a plain list of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.backlog import Backlog, Waiting

ENTRY = st.tuples(st.integers(-1, 2), st.sampled_from(["a", "b", "c"]), st.integers(1, 9), st.integers(0, 9))


@given(st.lists(st.tuples(ENTRY, st.booleans()), max_size=60))
def test_sums_are_those_of_what_waits(steps):
    backlog, entries = Backlog(), []
    for entry, leaves in steps:
        if leaves and entries:
            backlog.remove(*entries.pop(len(entries) // 2))
        else:
            entries.append(entry)
            backlog.add(*entry)
        assert backlog.requests == len(entries)
        assert backlog.tokens == sum(e[2] for e in entries)
        assert backlog.by_priority() == {
            level: sum(e[0] == level for e in entries) for level in sorted({e[0] for e in entries})
        }
        for level in (-1, 0, 1, 2):
            alone = [e for e in entries if e[0] <= level]
            if {e[1] for e in alone} <= {"a"}:
                expected = Waiting(len(alone), sum(e[2] for e in alone), sum(e[3] for e in alone))
                assert backlog.ahead(level, "a") == expected


def test_a_tenant_with_nothing_waiting_does_not_wait_for_all_of_another():
    backlog = Backlog()
    for _ in range(100):
        backlog.add(0, "many", 10, 20)
    assert backlog.ahead(0, "few") == Waiting(1, 10, 20)
    assert backlog.ahead(0, "many") == Waiting(100, 1000, 2000)
    assert backlog.ahead(1, "few") == Waiting(100, 1000, 2000)
    assert backlog.ahead(-1, "many") == Waiting()

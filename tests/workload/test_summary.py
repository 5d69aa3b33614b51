"""Summaries: the share of prompts that a cache without end would serve, by hand, by brute force, and as published."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.workload.demand import ANSWER, Demand
from headrace.workload.summary import shared_prefix_share, summarize
from headrace.workload.traces import read_trace


def test_rates_lengths_and_bursts():
    demands = [Demand(at, ((k, 10 * (k + 1)),), k + 1) for k, at in enumerate((0.0, 1.0, 3.0))]
    found = summarize(demands)
    assert (found["requests"], found["duration_s"], found["rate_per_s"]) == (3, 3.0, pytest.approx(2 / 3))
    assert found["burstiness_cv"] == pytest.approx(1 / 3)
    assert found["input_len"] == {"mean": 20, "p50": 20, "p90": 30, "p99": 30, "max": 30}
    together = summarize([Demand(5.0, ((1, 4),), 1)] * 2)
    assert together["rate_per_s"] is None and together["shared_prefix_share"] == 3 / 8


def test_an_answer_is_shared_by_its_own_conversation_only():
    first = Demand(0.0, ((0, 10), (1, 4)), 6)
    other = Demand(1.0, ((0, 10), (2, 4)), 6)
    on = Demand(1.0, ((0, 10), (1, 4), (ANSWER, 6), (3, 5)), 2, follows=0)
    assert shared_prefix_share([first, other, on]) == (10 + 20) / (14 + 14 + 25)
    twice = Demand(1.0, ((0, 10), (1, 4), (ANSWER, 6), (3, 5), (ANSWER, 2), (4, 1)), 2, follows=2)
    assert shared_prefix_share([first, other, on, twice]) == (10 + 20 + 27) / (14 + 14 + 25 + 28)


def equal_tokens(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


prompts = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=4).map(tuple)


@given(st.lists(st.tuples(prompts, st.integers(1, 3)), min_size=1, max_size=12))
def test_as_comparing_all_tokens_says(asked):
    demands = [Demand(0.0, prompt, output) for prompt, output in asked]
    # Tokens are equal where parts are the same from their beginning: where contents follow each other the same way.
    told: list[list[tuple[object, ...]]] = []
    hits = 0
    for place, (prompt, output) in enumerate(asked):
        own, before = [], ()
        for name, length in (*prompt, (f"answer {place}", output)):
            own += [(before, name, k) for k in range(length)]
            before = (*before, (name, length))
        new = own[: demands[place].input_len]
        shared = max((equal_tokens(one, new) for one in told), default=0)
        hits += min(shared, len(new) - 1)
        told.append(own)
    assert shared_prefix_share(demands) == hits / sum(one.input_len for one in demands)


@pytest.mark.parametrize(("name", "share"), [("conversation", 0.374), ("synthetic", 0.651)])
def test_the_published_shares(name, share, data_folder):
    demands = read_trace(data_folder / "traces" / f"mooncake_{name}.jsonl.gz")
    assert shared_prefix_share(demands) == pytest.approx(share, abs=5e-4)

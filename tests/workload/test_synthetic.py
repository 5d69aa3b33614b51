"""Drawn workloads: the rate and size that were asked, prompts that grow out of the ones before, the same for a seed."""

from __future__ import annotations

from collections import Counter
from functools import partial
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.workload.arrivals import gamma, on_off
from headrace.workload.conversations import Kind, Pool, open_load
from headrace.workload.demand import ANSWER
from headrace.workload.lengths import fixed, geometric, lognormal, uniform, waits
from headrace.workload.summary import summarize
from headrace.workload.synthetic import KINDS, named
from headrace.workload.traces import read_trace

names = st.sampled_from(sorted(KINDS))
loads = st.one_of(
    st.fixed_dictionaries({"rate": st.floats(0.01, 100)}), st.fixed_dictionaries({"users": st.integers(1, 9)})
)


@settings(max_examples=30)
@given(names, loads, st.integers(1, 200), st.integers(0, 2**32))
def test_sessions_are_in_order_and_prompts_grow(name, load, requests, seed):
    demands = named(name, requests=requests, seed=seed, tenants=3, **load)
    assert len(demands) == requests and demands == named(name, requests=requests, seed=seed, tenants=3, **load)
    followed = Counter(one.follows for one in demands if one.follows is not None)
    assert all(times == 1 for times in followed.values())
    for place, one in enumerate(demands):
        assert one.at >= 0 and one.output_len >= 1 and all(length >= 1 for _, length in one.prompt)
        if one.follows is None:
            assert not any(name == ANSWER for name, _ in one.prompt)
            continue
        before = demands[one.follows]
        assert one.follows < place and one.tenant == before.tenant
        if any(name == ANSWER for name, _ in one.prompt):
            assert one.prompt[:-1] == (*before.prompt, (ANSWER, before.output_len))
        else:
            assert "users" in load  # another conversation of the same user
    open_ones = [one.at for one in demands if one.follows is None]
    if "rate" in load:
        assert open_ones == sorted(open_ones)
    else:
        assert len(open_ones) == min(load["users"], requests)


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("rate", [2.0, 50.0])
def test_a_load_has_its_rate_from_the_start(name, rate):
    first, whole = (summarize(named(name, requests=count, rate=rate, seed=3)) for count in (1000, 5000))
    assert first["rate_per_s"] == pytest.approx(rate, rel=0.15) and whole["rate_per_s"] == pytest.approx(rate, rel=0.1)


def test_more_requests_begin_as_fewer_do():
    assert named("agent", requests=50, rate=3.0) == named("agent", requests=300, rate=3.0)[:50]
    assert named("chat", requests=50, rate=3.0, seed=1) != named("chat", requests=50, rate=3.0, seed=2)


def test_lengths_are_those_of_the_sources(data_folder):
    code, chat = (named(name, requests=20_000, rate=5.0) for name in ("code", "chat"))
    for drawn, trace in ((code, "azure_2023_code"), (chat, "azure_2023_conv")):
        recorded = summarize(read_trace(data_folder / "traces" / f"{trace}.csv.gz"))
        own = summarize(drawn)
        for column in ("output_len", "input_len") if drawn is code else ("output_len",):
            for key in ("mean", "p50"):
                assert own[column][key] == pytest.approx(recorded[column][key], rel=0.1)
    turns = Counter(part for one in chat for part, _ in one.prompt[1:2])
    assert fmean(turns.values()) == pytest.approx(2.0, rel=0.1)


def test_a_few_documents_are_in_most_requests():
    used = Counter(part for one in named("rag", requests=5000, rate=5.0) for part in one.prompt[1:-1])
    assert sum(count for _, count in used.most_common(300)) / used.total() == pytest.approx(0.6, abs=0.05)
    assert all(len(set(one.prompt)) == 5 for one in named("rag", requests=100, rate=5.0))


def test_pieces_compose():
    system = Pool(3, 1.0, uniform(10, 20), first=0)
    kind = Kind(lambda draw: (system.pick(draw),), fixed(5), lognormal(3, 4), geometric(4.0), waits(2, 3))
    demands = open_load(kind, partial(gamma, burstiness=0.2), requests=4000, rate=20.0, seed=0, tenants=["a", "b"])
    assert summarize(demands)["rate_per_s"] == pytest.approx(20.0, rel=0.15)
    assert Counter(one.tenant for one in demands)["a"] == pytest.approx(2000, rel=0.15)
    assert {one.prompt[0] for one in demands} == set(system.parts)
    bursts = open_load(kind, partial(on_off, on_s=5.0, off_s=20.0), requests=2000, rate=20.0, seed=0)
    assert summarize(bursts)["peak_rate_per_s"] > 40


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"name": "chatt", "rate": 1.0}, "did you mean chat"),
        ({"name": "chat"}, "either a rate or users"),
        ({"name": "chat", "rate": 1.0, "users": 1}, "either a rate or users"),
        ({"name": "chat", "rate": 0.0}, "rate must be above 0"),
        ({"name": "chat", "users": 0}, "users must be at least 1"),
        ({"name": "chat", "rate": 1.0, "requests": 0}, "requests must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(asked, says):
    with pytest.raises(ConfigError, match=says):
        named(**{"requests": 5, **asked})

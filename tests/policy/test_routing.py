"""Routers choose by what they are shown, and the prefix index knows what a plain one would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.replica import Load, Loads, Speed
from headrace.policy.routing import Ask, Assumed, LeastLoaded, LongestPrefix, PrefixIndex, RoundRobin, TwoChoices

SPEED = Speed(token=1e-3, step=0.01, request=1e-3)


def loads(*requests: int, tokens: tuple[int, ...] = ()) -> Loads:
    found = Loads(len(requests))
    for replica, running in enumerate(requests):
        found.report(replica, Load(running=running, tokens=tokens[replica] if tokens else 0, blocks_total=100))
    return found


def test_round_robin_takes_turns() -> None:
    router, fleet = RoundRobin(), loads(9, 0, 0)
    assert [router.route(Ask(5), fleet) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_the_least_loaded_has_fewest_requests_then_fewest_tokens() -> None:
    assert LeastLoaded().route(Ask(5), loads(3, 1, 2)) == 1
    assert LeastLoaded().route(Ask(5), loads(1, 1, 1, tokens=(50, 20, 20))) == 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.floats(0, 0.999), st.floats(0, 0.999))
def test_the_better_of_two_different_ones_is_taken(running: list[int], first: float, second: float) -> None:
    count = len(running)
    chosen = TwoChoices().route(Ask(5, draws=(first, second)), loads(*running))
    one = int(first * count)
    assert running[chosen] <= running[one]
    if count > 1:
        # Some second choice leads to every replica that is no worse than the first.
        reached = {TwoChoices().route(Ask(5, draws=(first, k / count)), loads(*running)) for k in range(count)}
        assert reached <= {one} | {i for i in range(count) if running[i] <= running[one]}


def test_a_cached_prefix_draws_a_request_until_the_queue_costs_more() -> None:
    index = PrefixIndex(3)
    index.stored(2, ["a", "b"])
    router, ask = LongestPrefix(index, SPEED, 100), Ask(300, ["a", "b", "c"])
    assert router.route(ask, loads(0, 0, 0)) == 2
    # 200 cached tokens save 0.2 s: as much as 200 tokens that are ahead.
    assert router.route(ask, loads(0, 0, 0, tokens=(0, 0, 199))) == 2
    assert router.route(ask, loads(0, 0, 0, tokens=(0, 0, 201))) == 0


def test_a_crowd_outweighs_a_short_prefix() -> None:
    index = PrefixIndex(2)
    index.stored(1, ["a"])
    ask = Ask(300, ["a", "b"])
    assert LongestPrefix(index, SPEED, 100, answer=100).route(ask, loads(0, 0)) == 1
    assert LongestPrefix(index, SPEED, 100, answer=100).route(ask, loads(0, 1)) == 0


def test_the_last_token_of_a_prompt_is_never_cached() -> None:
    index = PrefixIndex(2)
    index.stored(1, ["a"])
    assert LongestPrefix(index, SPEED, 100).route(Ask(100, ["a"]), loads(0, 0, tokens=(0, 99))) == 0


@given(
    st.integers(1, 70),
    st.lists(st.tuples(st.sampled_from(["stored", "removed", "cleared"]), st.integers(0, 69), st.integers(0, 6))),
    st.integers(0, 6),
)
def test_the_index_knows_what_sets_know(replicas: int, events: list[tuple[str, int, int]], asked: int) -> None:
    index, plain = PrefixIndex(replicas), [set[int]() for _ in range(replicas)]
    for kind, replica, name in events:
        replica %= replicas
        if kind == "stored":
            index.stored(replica, range(name))
            plain[replica] |= set(range(name))
        elif kind == "removed":
            index.removed(replica, [name])
            plain[replica].discard(name)
        else:
            index.cleared(replica)
            plain[replica].clear()
    depths = [next((i for i in range(asked) if i not in has), asked) for has in plain]
    assert index.depths(range(asked)).tolist() == depths
    assert len(index) == len(set().union(*plain))


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), unique=True, max_size=6))))
def test_no_more_is_assumed_than_fits(prompts: list[tuple[int, list[int]]]) -> None:
    index = PrefixIndex(3)
    assumed = Assumed(index, [4, 4, 4])
    for replica, names in prompts:
        assumed.sent(replica, names)
        assert index.depths(names)[replica] == min(len(names), 4)
        assert all(sum(index.depths([name])[r] for name in range(10)) <= 4 for r in range(3))


@pytest.mark.parametrize("total", [0, 10])
def test_a_load_says_what_share_of_blocks_is_used(total: int) -> None:
    found = Loads(1)
    found.report(0, Load(waiting=2, tokens=3, running=4, blocks_used=5, blocks_total=total))
    assert (found.requests[0], found.tokens[0], found.blocks[0]) == (6, 3, 5 / total if total else 0)

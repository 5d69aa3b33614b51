import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.policy.budget import share


def shares(pending, budget):
    return share(np.array(pending, np.int32), budget).tolist()


def test_decodes_come_first_then_prefills_in_order_and_the_last_is_cut():
    assert shares([5, 1, 8, 1, 4], 12) == [5, 1, 5, 1, 0]
    assert shares([5, 1, 8, 1, 4], 100) == [5, 1, 8, 1, 4]
    assert shares([1, 1, 1], 2) == [1, 1, 0]
    assert shares([3, 1], 1) == [0, 1]
    assert shares([], 4) == []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 40))
def test_the_budget_is_used_up_but_never_exceeded(pending, budget):
    counts = shares(pending, budget)
    assert sum(counts) == min(sum(pending), budget)
    assert all(0 <= count <= want for count, want in zip(counts, pending, strict=True))
    # Nobody is cut while a later one of the same kind gets something.
    for kind in (lambda want: want == 1, lambda want: want > 1):
        mine = [(count, want) for count, want in zip(counts, pending, strict=True) if kind(want)]
        cut = next((i for i, (count, want) in enumerate(mine) if count < want), len(mine))
        assert all(count == 0 for count, _ in mine[cut + 1 :])

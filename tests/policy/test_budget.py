"""A step's tokens: single ones first, longer entries in order, cut where tokens or time run out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.budget import LEAST_CHUNK, StepBudget, TimeTarget
from headrace.policy.latency import LatencyModel, LinearPrior, StepWork

PRIOR = LinearPrior(step=1e-3, token=1e-4, request=0, context=0, pair=1e-6, row=0)


def singles(budget, count, context=100):
    return budget.take_singles(np.full(count, context, np.int32), np.ones(count, np.int32)).tolist()


def take(budget, start, wanted):
    count = budget.offer(start, wanted)
    budget.take(start, count)
    return count


def test_single_tokens_come_first_and_the_last_entry_is_cut():
    budget = StepBudget(12)
    assert singles(budget, 2) == [1, 1]
    assert [take(budget, 0, wanted) for wanted in (5, 8, 4)] == [5, 5, 0]


def test_single_tokens_are_given_in_order():
    assert singles(StepBudget(2), 3) == [1, 1, 0]
    budget = StepBudget(2)
    assert budget.take_singles(np.zeros(4, np.int32), np.array([0, 1, 0, 1], np.int32)).tolist() == [0, 1, 0, 1]


@given(st.integers(1, 40), st.integers(0, 20), st.lists(st.integers(1, 20), max_size=8))
def test_the_budget_is_used_up_but_never_exceeded(tokens, decodes, longer):
    budget = StepBudget(tokens)
    given_out = sum(singles(budget, decodes)) + sum(take(budget, 0, wanted) for wanted in longer)
    assert given_out == min(tokens, decodes + sum(longer))
    assert budget.left == tokens - given_out


@given(
    st.floats(1e-4, 0.1),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 600)), min_size=1, max_size=6),
)
def test_a_step_with_decodes_ends_in_time_or_has_the_least_chunk(seconds, decodes, longer):
    budget = StepBudget(1024, TimeTarget(seconds, LatencyModel(PRIOR)))
    singles(budget, decodes)
    counts = [(start, take(budget, start, wanted), wanted) for start, wanted in longer]
    tokens = sum(count for _, count, _ in counts)
    if not decodes:
        assert tokens == min(1024, sum(wanted for _, _, wanted in counts)), "nobody waits for this step"
        return
    assert tokens >= min(LEAST_CHUNK, sum(wanted for _, _, wanted in counts)), "prompts move on"
    pairs = sum(count * (start + count / 2) for start, count, _ in counts)
    entries = decodes + sum(count > 0 for _, count, _ in counts)
    if tokens > LEAST_CHUNK:
        assert PRIOR(StepWork(decodes + tokens, entries, 0, pairs)) <= seconds
    cut = [(start, count, wanted) for start, count, wanted in counts if count < wanted]
    if cut and decodes + tokens < 1024:
        start, count, _ = cut[0]
        more = (count + 1) * (start + (count + 1) / 2) - count * (start + count / 2)
        later = pairs - sum(n * (s + n / 2) for s, n, _ in counts[counts.index(cut[0]) + 1 :])
        before = tokens - sum(n for _, n, _ in counts[counts.index(cut[0]) + 1 :])
        longer_step = StepWork(decodes + before + 1, entries, 0, later + more)
        assert PRIOR(longer_step) > seconds, "a chunk is as long as time allows"


def test_no_time_target_asks_no_model():
    class Asked(LatencyModel):
        def predict(self, work):
            raise AssertionError("asked")

    budget = StepBudget(64)
    singles(budget, 4)
    assert take(budget, 0, 100) == 60
    timed = StepBudget(64, TimeTarget(1.0, Asked()))
    singles(timed, 4)
    with pytest.raises(AssertionError, match="asked"):
        take(timed, 0, 100)

"""Drafters that copy: what they propose from a text that repeats itself, and from what was answered before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.drafters import lookup_reference

from headrace.ops.kernels import kernels
from headrace.policy.speculation import Context
from headrace.worker.drafters.lookup import LookupDrafter

_TEXT = st.lists(st.integers(0, 4), max_size=60)


def ask(drafter, tokens, most=8, *, slot=0, serial=1, namespace=("", "")):
    (proposal,) = drafter.propose([Context(slot, serial, namespace, np.array(tokens, np.int32), most)])
    assert len(proposal.tokens) == len(proposal.odds) <= most
    assert all(1 > a >= b > 0 for a, b in zip((0.999, *proposal.odds), proposal.odds, strict=False))
    return list(proposal.tokens)


def test_it_goes_on_as_the_text_did_before():
    assert ask(LookupDrafter(), [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]) == [4, 5, 6, 9, 1, 2, 3, 4]
    assert ask(LookupDrafter(), [1, 2, 3, 4]) == []
    assert ask(LookupDrafter(), [7]) == []


def test_a_loop_is_followed_beyond_the_end_of_the_text():
    assert ask(LookupDrafter(), [9, 5, 5], 6) == [5] * 6
    assert ask(LookupDrafter(), [1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]


def test_one_token_alike_is_a_weak_hint():
    (proposal,) = LookupDrafter().propose([Context(0, 1, ("", ""), np.array([4, 8, 6, 4], np.int32), 1)])
    assert list(proposal.tokens) == [8]
    assert proposal.odds[0] < 0.5


def test_ones_own_text_outweighs_what_others_were_answered():
    drafter = LookupDrafter(past_tokens=1000)
    drafter.remember(("", ""), np.array([1, 2, 3, 7, 7, 7], np.int32), prompt_len=0)
    assert ask(drafter, [1, 2, 3, 4, 0, 1, 2, 3], 1) == [4]
    assert ask(drafter, [5, 1, 2, 3], 1, slot=1) == [7]


def test_the_place_that_is_most_like_the_end_leads():
    text = [1, 2, 3, 8, 0, 5, 2, 3, 9, 0, 1, 2, 3]
    assert ask(LookupDrafter(), text, 1) == [8]
    assert ask(LookupDrafter(), [0, 5, 2, 3, 9, 1, 2, 3, 8, 0, 5, 2, 3], 1) == [9]


def test_a_longer_likeness_promises_more():
    drafter = LookupDrafter()
    (short,) = drafter.propose([Context(0, 1, ("", ""), np.array([1, 2, 5, 9, 1, 2], np.int32), 1)])
    (long,) = drafter.propose([Context(1, 1, ("", ""), np.array([4, 3, 1, 2, 5, 9, 4, 3, 1, 2], np.int32), 1)])
    assert short.tokens == long.tokens == [5]
    assert long.odds[0] > short.odds[0]


def test_the_text_of_another_request_in_the_same_slot_is_forgotten():
    drafter = LookupDrafter()
    ask(drafter, [1, 2, 3, 4, 1, 2])
    assert ask(drafter, [1, 2], serial=2) == []


def test_past_outputs_serve_their_own_namespace_alone():
    drafter = LookupDrafter(past_tokens=1000)
    drafter.remember(("a", ""), np.array([5, 1, 2, 3, 4, 6, 7], np.int32), prompt_len=1)
    assert ask(drafter, [9, 1, 2, 3], namespace=("a", "")) == [4, 6, 7]
    assert ask(drafter, [9, 1, 2, 3], slot=1, namespace=("b", "")) == []
    assert ask(drafter, [9, 1, 2, 3], slot=2, namespace=("a", "salt")) == []
    assert ask(LookupDrafter(), [9, 1, 2, 3]) == []


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 60)), max_size=60))
def test_what_is_remembered_is_bounded(texts):
    drafter = LookupDrafter(past_tokens=200)
    for name, length in texts:
        drafter.remember((str(name), ""), np.arange(length, dtype=np.int32), prompt_len=0)
    assert sum(len(text) for all_of in drafter._past.values() for text in all_of) <= 200
    assert len(drafter._past) <= 64


@given(_TEXT, _TEXT, st.lists(_TEXT, max_size=3), st.integers(0, 8), st.sampled_from([0.0, 0.05, 0.3]))
def test_it_guesses_as_the_reference_does(begin, end, others, most, least):
    """The text is seen in two pieces, as it is while it grows."""
    own, texts = kernels.Text(1), [kernels.Text(2) for _ in others]
    for text, tokens in zip(texts, others, strict=True):
        text.extend(np.array(tokens, np.int32))
    own.guess(np.array(begin, np.int32), [], 1, 0.0)
    tokens, odds = own.guess(np.array(begin + end, np.int32), texts, most, least)
    expected_tokens, expected_odds = lookup_reference.guess(begin + end, others, most, least)
    assert tokens == expected_tokens
    assert odds == pytest.approx(expected_odds)


def test_texts_that_do_not_go_on_are_refused():
    text = kernels.Text(1)
    text.guess(np.array([1, 2, 3], np.int32), [], 1, 0.0)
    with pytest.raises(ValueError, match="must begin"):
        text.guess(np.array([1, 2], np.int32), [], 1, 0.0)
    with pytest.raises(ValueError, match="run must be 1 or 2"):
        kernels.Text(3)

"""Reasoning is told from the answer, the same however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.reasoning import ReasoningSplitter


def split(pieces: list[str], *, inside: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(inside=inside)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    return "".join(reasoning for reasoning, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, ("Hm.", "Yes.")),
        ("Yes <think>no</think>", False, ("", "Yes <think>no</think>")),
        ("  Yes", False, ("", "  Yes")),
        ("<thin", False, ("", "<thin")),
        ("<think>never ends", False, ("never ends", "")),
        ("", False, ("", "")),
        ("Hm.</think>Yes.", True, ("Hm.", "Yes.")),
        ("<think>Hm.</think>Yes.", True, ("Hm.", "Yes.")),
        ("</think>Yes.", True, ("", "Yes.")),
        ("cut </thi", True, ("cut </thi", "")),
        ("<thi", True, ("<thi", "")),
        ("<think>\n\n</think>\n\nYes.</think>", False, ("", "Yes.</think>")),
        ("<think><think>a</think>b", True, ("<think>a", "b")),
    ],
)
def test_examples_whole_and_cut_at_every_character(text: str, inside: bool, expected: tuple[str, str]) -> None:
    assert split([text], inside=inside) == expected
    assert split(list(text), inside=inside) == expected
    for cut in range(1, len(text)):
        assert split([text[:cut], text[cut:]], inside=inside) == expected


@settings(max_examples=200, deadline=None)
@given(
    words=st.lists(st.sampled_from(["<think>", "</think>", "<thin", "k>", "</", " ", "\n", "a", "<"]), max_size=10),
    inside=st.booleans(),
    data=st.data(),
)
def test_any_text_splits_the_same_however_it_is_cut(words: list[str], inside: bool, data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert split(pieces, inside=inside) == split([text], inside=inside) == split(list(text), inside=inside)

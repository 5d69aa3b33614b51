"""A matcher follows its slot wherever the tokens go: forward, back to an earlier position, onto other tokens. The
mask of a row is always that of a matcher that has seen nothing but the row's own history."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.letters import Letters, letters_compiler, matcher

from headrace.core.batch import SlotJoin
from headrace.core.errors import RequestError
from headrace.core.request import SamplingParams
from headrace.core.structured import StructuredOutputsParams
from headrace.worker.grammar import GrammarMasks, StepMasks, no_grammars

SIZE = 150
WORDS = Letters(SIZE)
COMPILER = letters_compiler(SIZE)
FORMS: dict[int, dict[str, Any]] = {
    0: {"regex": "a(bc|de)*f?"},
    1: {"json_object": True},
    3: {"choice": ["abc", "abd", "x"]},
}
PROMPT = 2
LENGTH = 14


def join(slot: int, form: dict[str, Any] | None) -> SlotJoin:
    wanted = None if form is None else StructuredOutputsParams(**form)
    params = SamplingParams(structured_outputs=wanted)
    return SlotJoin(slot, np.zeros(PROMPT, np.int32), PROMPT, params, 0, 0, WORDS.eos_ids)


def masks(grammars: GrammarMasks, rows: list[tuple[int, int]], history: np.ndarray) -> StepMasks | None:
    slots, positions = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    grammars.begin(slots, positions, np.ones(len(rows), np.bool_), history)
    return grammars.take()


def expected(form: dict[str, Any], outputs: list[int]) -> np.ndarray:
    """The mask after these outputs, from a fresh matcher; all tokens where they have left the form."""
    fresh = matcher(COMPILER, **form)
    if fresh.try_consume_tokens(outputs) < len(outputs):
        return np.full(-(-SIZE // 32), 0xFFFFFFFF, np.uint32)
    return np.frombuffer(fresh.compute_bitmask(), np.uint32)


def letters(form: dict[str, Any]) -> list[int]:
    return [*WORDS.ids("abcdef" if "regex" in form else 'abcdx{}":,1'), SIZE - 1]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_row_has_the_mask_of_its_own_history(data: st.DataObject) -> None:
    grammars = GrammarMasks(4, SIZE, COMPILER.compile)
    history = np.zeros((4, LENGTH), np.int32)
    for slot in range(4):
        grammars.join(join(slot, FORMS.get(slot)))
    for _ in range(data.draw(st.integers(1, 8), "steps")):
        slot = data.draw(st.sampled_from(sorted(FORMS)), "slot to change")
        start = data.draw(st.integers(PROMPT, LENGTH - 1), "from")
        fresh = st.lists(st.sampled_from(letters(FORMS[slot])), min_size=LENGTH - start, max_size=LENGTH - start)
        history[slot, start:] = data.draw(fresh, "tokens")
        rows = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(PROMPT, LENGTH)), min_size=1, max_size=6))
        step = masks(grammars, rows, history)
        if not any(slot in FORMS for slot, _ in rows):
            assert step is None
            continue
        assert step is not None
        assert step.faults == {}
        for row, (slot, position) in enumerate(rows):
            place = step.masks.row[row]
            if slot not in FORMS:
                assert place == -1
                continue
            outputs = history[slot, PROMPT:position].tolist()
            np.testing.assert_array_equal(step.masks.bits[place], expected(FORMS[slot], outputs))


def test_rows_that_are_not_sampled_and_slots_that_were_left_have_no_mask() -> None:
    grammars = GrammarMasks(2, SIZE, COMPILER.compile)
    history = np.zeros((2, LENGTH), np.int32)
    grammars.join(join(0, FORMS[0]))
    grammars.join(join(1, FORMS[3]))
    grammars.begin(np.int32([0, 1]), np.int32([2, 2]), np.array([False, True]), history)
    step = grammars.take()
    assert step is not None
    assert step.masks.row.tolist() == [-1, 0]
    grammars.leave(1)
    assert masks(grammars, [(1, 2)], history) is None


def test_a_resumed_request_goes_on_where_its_tokens_end() -> None:
    grammars = GrammarMasks(1, SIZE, COMPILER.compile)
    outputs = WORDS.ids("abc")
    history = np.array([[0] * PROMPT + outputs], np.int32)
    grammars.join(join(0, FORMS[0]))
    step = masks(grammars, [(0, PROMPT + 3)], history)
    assert step is not None
    np.testing.assert_array_equal(step.masks.bits[0], expected(FORMS[0], outputs))


def test_a_form_that_is_not_understood_is_its_own_rows_fault() -> None:
    def compile_grammar(wanted: StructuredOutputsParams) -> Future[Any]:
        return no_grammars(wanted) if wanted.choice else COMPILER.compile(wanted)

    grammars = GrammarMasks(3, SIZE, compile_grammar)
    grammars.join(join(0, FORMS[0]))
    grammars.join(join(1, FORMS[3]))
    grammars.join(join(2, {"regex": "("}))
    step = masks(grammars, [(0, 2), (1, 2), (2, 2)], np.zeros((3, LENGTH), np.int32))
    assert step is not None
    assert sorted(step.faults) == [1, 2]
    assert "it knows no vocabulary" in step.faults[1]
    assert "unclosed group" in step.faults[2]
    np.testing.assert_array_equal(step.masks.bits[0], expected(FORMS[0], []))


def test_a_mask_that_cannot_be_computed_is_the_fault_of_its_row_alone() -> None:
    """The row may stand after a draft that is not accepted: the rows before it go on."""

    class Stuck:
        """Like a matcher, but after two tokens it is stuck for ever."""

        def __init__(self) -> None:
            self.tokens = 0
            self.stuck = False

        def deep_copy(self) -> Stuck:
            return Stuck()

        def try_consume_tokens(self, tokens: list[int]) -> int:
            # As the library does where a token opens more than it may follow: nothing is taken.
            self.stuck |= 7 in tokens
            self.tokens += 0 if self.stuck else len(tokens)
            return 0 if self.stuck else len(tokens)

        def rollback(self, count: int) -> None:
            self.tokens -= count

        def unsafe_compute_mask_ptr(self, address: int, width: int) -> None:
            self.stuck |= self.tokens >= 2

        def is_error(self) -> bool:
            return self.stuck

        def get_error(self) -> str:
            return "Parser Error: too many items\nmore"

    done: Future[Any] = Future()
    done.set_result(Stuck())
    grammars = GrammarMasks(1, SIZE, lambda wanted: done)
    grammars.join(join(0, FORMS[0]))
    history = np.zeros((1, LENGTH), np.int32)
    reason = "structured_outputs could not be followed any further: Parser Error: too many items"
    for rows, faults in (([(0, 2), (0, 3), (0, 4)], {2: reason}), ([(0, 3)], {}), ([(0, 4)], {0: reason})):
        step = masks(grammars, rows, history)
        assert step is not None
        assert step.faults == faults
    history[0, 2] = 7
    step = masks(grammars, [(0, 3)], history)
    assert step is not None
    assert step.faults == {0: reason}, "a token that it cannot take is no way out of the form"


def test_errors_of_compiling_are_raised_to_those_who_ask() -> None:
    with pytest.raises(RequestError, match="unclosed group"):
        matcher(COMPILER, regex="(")

"""GrammarMasks: which tokens each slot with structured_outputs may take next. A matcher follows the tokens of its
slot: before a row is masked, it steps back to where the row's own history agrees with what it has taken, and forward
from there. So a resumed request, a rejected draft or a step that is run again needs nothing of its own.

Masks are computed on a thread of their own while the program runs. A step runs after the one before it has recorded
its samples, so a matcher always knows the token before; steps begun early wait in the executor's queue, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.core.batch import EMPTY, BoolArray, IntArray, SlotJoin, TokenMasks, WordArray
from headrace.core.errors import EngineError, RequestError
from headrace.core.prefix import common_length
from headrace.core.structured import StructuredOutputsParams

Compile = Callable[[StructuredOutputsParams], Future[Any]]
"""models/grammar.py: a matcher at its start, to be copied."""


def no_grammars(wanted: StructuredOutputsParams) -> Future[Any]:
    """Where no vocabulary is known, no form can be held to."""
    failed: Future[Any] = Future()
    failed.set_exception(EngineError("structured_outputs are not available on this engine: it knows no vocabulary"))
    return failed


_ALL = np.uint32(0xFFFFFFFF)


class GrammarMasks:
    """begin() before the program runs, take() after it; join() and leave() only outside of the two."""

    def __init__(self, num_slots: int, vocab_size: int, compile_grammar: Compile) -> None:
        self._compile = compile_grammar
        self._words = -(-vocab_size // 32)
        self._matching: dict[int, _Matching] = {}
        self._constrained: BoolArray = np.zeros(num_slots, np.bool_)
        self._bits: WordArray = np.zeros((0, self._words), np.uint32)
        self._thread = ThreadPoolExecutor(1, "headrace-masks")
        self._under_way: Future[StepMasks] | None = None

    def join(self, join: SlotJoin) -> None:
        self.leave(join.slot)
        wanted = join.params.structured_outputs
        if wanted is not None:
            self._matching[join.slot] = _Matching(self._compile(wanted), join.prompt_len)
            self._constrained[join.slot] = True

    def leave(self, slot: int) -> None:
        if self._matching.pop(slot, None) is not None:
            self._constrained[slot] = False

    def begin(self, slots: IntArray, positions: IntArray, sample: BoolArray, history: IntArray) -> None:
        """Rows as ops/sampling.Sampler.run has them. history must not change until take()."""
        if not self._matching:
            return
        rows = np.flatnonzero(self._constrained[slots] & sample).tolist()
        if rows:
            self._under_way = self._thread.submit(self._mask, rows, slots, positions, history)

    def take(self) -> StepMasks | None:
        """The step's masks, None if no row has one; they are valid until the next begin()."""
        under_way, self._under_way = self._under_way, None
        return None if under_way is None else under_way.result()

    def _mask(self, rows: list[int], slots: IntArray, positions: IntArray, history: IntArray) -> StepMasks:
        if len(self._bits) < len(rows):
            self._bits = np.zeros((len(rows), self._words), np.uint32)
        row_of = np.full(len(slots), -1, np.int32)
        faults: dict[int, str] = {}
        address, width = self._bits.ctypes.data, 4 * self._words
        for place, row in enumerate(rows):
            slot = int(slots[row])
            matching = self._matching[slot]
            try:
                if not matching.follow(history[slot, : positions[row]]):
                    self._bits[place] = _ALL
                else:
                    matching.fill(address + place * width, width)
            except (RequestError, EngineError) as error:
                faults[row] = str(error)
                self._bits[place] = _ALL
            row_of[row] = place
        return StepMasks(TokenMasks(row_of, self._bits[: len(rows)]), faults)


@dataclass(frozen=True, slots=True)
class StepMasks:
    """masks of a step's logit rows; faults: rows whose grammar failed, and why."""

    masks: TokenMasks
    faults: dict[int, str] = field(default_factory=dict)


class _Matching:
    """One request's matcher and the tokens it has taken."""

    def __init__(self, compiled: Future[Any], prompt_len: int) -> None:
        self._compiled = compiled
        self._prompt_len = prompt_len
        self._matcher: Any = None
        self._taken: IntArray = EMPTY

    def follow(self, known: IntArray) -> bool:
        """Bring the matcher to the end of the known tokens. False if they leave the grammar: then what follows is
        dropped by whoever began the step (past the end, or after a draft that cannot be accepted). Raises as fill()."""
        if self._matcher is None:
            self._matcher = self._compiled.result().deep_copy()
        outputs = known[self._prompt_len :]
        kept = common_length(self._taken, outputs)
        if kept < len(self._taken):
            self._matcher.rollback(len(self._taken) - kept)
        if kept < len(outputs):
            kept += self._matcher.try_consume_tokens(outputs[kept:].tolist())
            self._check()
        self._taken = outputs[:kept].copy()
        return kept == len(outputs)

    def fill(self, address: int, width: int) -> None:
        """Write the mask of what may come next. Raises EngineError if the grammar costs more than a step allows."""
        self._matcher.unsafe_compute_mask_ptr(address, width)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().splitlines()[0]
            # A matcher never leaves this state, but the row may stand after a draft that is not accepted.
            self._matcher, self._taken = None, EMPTY
            raise EngineError(f"structured_outputs could not be followed any further: {reason[:200]}")

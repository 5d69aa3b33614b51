"""Prompt log-probabilities: which running requests still owe them, the logit rows that bring them, and handing them
out. Rows that score follow the rows that sample, request after request.
"""

from dataclasses import dataclass

import numpy as np

from headrace.core.batch import BatchOutput, BoolArray, IntArray
from headrace.core.request import TokenLogprobs
from headrace.policy import deltas
from headrace.policy.sequence import Sequence
from headrace.policy.slots import Slots


@dataclass(slots=True)
class LogitRows:
    """The logit rows of a batch, as core/batch.py says them. owners: (slot, rows) of those that score."""

    entry: IntArray
    position: IntArray
    sample: BoolArray
    top: IntArray
    owners: list[tuple[int, int]]


class Scoring:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._owing: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._owing)

    def join(self, sequence: Sequence) -> None:
        if sequence.scoring:
            self._owing.add(sequence.slot)

    def leave(self, slot: int) -> None:
        self._owing.discard(slot)

    def add_rows(self, rows: LogitRows, slots: IntArray, starts: IntArray, ends: IntArray) -> LogitRows:
        """The rows and, after them, one for each prompt token that follows a position of this step and has not been
        scored yet."""
        entry, position, sample, top = [rows.entry], [rows.position], [rows.sample], [rows.top]
        owners: list[tuple[int, int]] = []
        for i, slot in enumerate(slots.tolist()):
            if slot not in self._owing:
                continue
            sequence = self._slots[slot]
            first, stop = max(int(starts[i]), sequence.scored), min(int(ends[i]), sequence.prompt_len - 1)
            if first < stop:
                entry.append(np.full(stop - first, i, np.int32))
                position.append(np.arange(first, stop, dtype=np.int32))
                sample.append(np.zeros(stop - first, np.bool_))
                top.append(np.full(stop - first, sequence.params.prompt_logprobs, np.int32))
                owners.append((slot, stop - first))
        if not owners:
            return rows
        return LogitRows(
            np.concatenate(entry), np.concatenate(position), np.concatenate(sample), np.concatenate(top), owners
        )

    def hand_out(
        self, output: BatchOutput, first_row: int, owners: list[tuple[int, int]], alive: set[int]
    ) -> list[tuple[Sequence, list[TokenLogprobs] | None]]:
        """What a finished step scored, for each owner in `alive` (slots): its log-probabilities in order, or None
        if its logits were not finite."""
        brought: list[tuple[Sequence, list[TokenLogprobs] | None]] = []
        row = first_row
        for slot, count in owners:
            rows = range(row, row + count)
            row += count
            if slot not in alive:
                continue
            sequence = self._slots[slot]
            if output.failed[rows[0] : rows[-1] + 1].any():
                brought.append((sequence, None))
                continue
            top = sequence.params.prompt_logprobs or 0
            sequence.scored += count
            if not sequence.scoring:
                self._owing.discard(slot)
            brought.append((sequence, [deltas.logprobs(output, r, top) for r in rows]))
        return brought

"""From a Batch to the arrays a program reads. SlotInputs owns the known tokens of every slot and fills StepInputs;
what it costs does not grow with the number of running requests, only with joins and rows.
"""

import numpy as np

from headrace.core.batch import EMPTY, Batch, IntArray
from headrace.ops.step import StepInputs


class SlotInputs:
    """tokens int32 [num_slots, max_model_len + 1]: known tokens by slot and position. The last column takes the
    sample of a row at the last position, which is never computed. logit_slots int32 [logits]: whose each logit row
    of the step is.

    A run of decode steps shares all arrays but the positions (policy/steady.py), so what follows from the others is
    made once for all of them, and known again by the arrays' identity: a Batch's arrays are never written to."""

    def __init__(self, step: StepInputs, max_model_len: int) -> None:
        self.step = step
        self.tokens: IntArray = np.zeros((step.num_slots, max_model_len + 1), np.int32)
        self.logit_slots: IntArray = EMPTY
        self._known = self.tokens.reshape(-1)
        self._laid_out: Batch | None = None
        self._first_rows: IntArray = EMPTY
        self._row_at = self._logit_at = np.zeros(0, np.intp)  # where in _known a row's slot begins
        self._all_sampled = True

    def apply(self, batch: Batch) -> None:
        """Take over what changed: tokens of requests that joined, then block-table edits in order."""
        for join in batch.joins:
            self.tokens[join.slot, : len(join.tokens)] = join.tokens
        edits = batch.edits
        if len(edits.slot) == 0:
            return
        if len(self.step.tables) == 1:
            self.step.tables[0][edits.slot, edits.index] = edits.block
            return
        for group, table in enumerate(self.step.tables):
            chosen = edits.group == group
            table[edits.slot[chosen], edits.index[chosen]] = edits.block[chosen]

    def fill(self, batch: Batch) -> None:
        """Write rows, entries and logit rows of this step."""
        if not _alike(batch, self._laid_out):
            self._lay_out(batch)
        step = self.step
        if batch.drafts is not None:
            self.tokens[batch.drafts.slot, batch.drafts.position] = batch.drafts.token
        positions = batch.starts
        if step.entries == 1 and step.rows > 1:
            start = int(batch.starts[0])
            positions = np.arange(start, start + step.rows, dtype=np.int32)
            step.logit_rows[: step.logits] = batch.logit_position - start
        elif step.rows != step.entries:
            shift = np.repeat(batch.starts - self._first_rows, batch.counts)
            positions = np.arange(step.rows, dtype=np.int32) + shift
            rows = (self._first_rows - batch.starts)[batch.logit_entry] + batch.logit_position
            step.logit_rows[: step.logits] = rows
        step.positions[: step.rows] = positions
        step.entry_start[: step.entries] = batch.starts
        step.tokens[: step.rows] = self._known.take(self._row_at + positions)

    def record(self, positions: IntArray, tokens: IntArray) -> None:
        """Sampled tokens of the step, at these positions, become known tokens of their slots."""
        at = self._logit_at + positions
        if self._all_sampled:
            self._known[at] = tokens
        else:
            assert self._laid_out is not None
            chosen = self._laid_out.logit_sample
            self._known[at[chosen]] = tokens[chosen]

    def _lay_out(self, batch: Batch) -> None:
        """Write all that does not depend on positions."""
        self._laid_out = batch
        step, entries, logits = self.step, len(batch.slots), len(batch.logit_entry)
        self._all_sampled = bool(batch.logit_sample.all())
        length = self.tokens.shape[1]
        if entries == 1:
            slot = int(batch.slots[0])
            step.rows, step.entries, step.logits = int(batch.counts[0]), 1, logits
            step.entry_slot[0], step.entry_row[0], step.entry_count[0] = slot, 0, step.rows
            step.logit_rows[:logits] = 0
            self.logit_slots = np.full(logits, slot, np.int32)
            self._row_at = self._logit_at = np.full(1, slot * length, np.intp)
            return
        ends = np.cumsum(batch.counts, dtype=np.int32)
        self._first_rows = ends - batch.counts
        step.rows, step.entries, step.logits = int(ends[-1]) if entries else 0, entries, logits
        step.entry_slot[:entries] = batch.slots
        step.entry_row[:entries] = self._first_rows
        step.entry_count[:entries] = batch.counts
        # With one row to each entry this is all there is to say of logit rows.
        step.logit_rows[:logits] = batch.logit_entry
        self.logit_slots = batch.slots[batch.logit_entry]
        self._row_at = np.repeat(batch.slots, batch.counts).astype(np.intp) * length
        self._logit_at = self.logit_slots.astype(np.intp) * length


def _alike(batch: Batch, other: Batch | None) -> bool:
    """Whether two steps have the same arrays but for positions."""
    return (
        other is not None
        and batch.slots is other.slots
        and batch.counts is other.counts
        and batch.logit_entry is other.logit_entry
        and batch.logit_sample is other.logit_sample
    )

"""From a Batch to the arrays a program reads. SlotInputs owns the known tokens of every slot and fills StepInputs;
what it costs does not grow with the number of running requests, only with joins and rows.
"""

from __future__ import annotations

import numpy as np

from headrace.core.batch import Batch, BatchOutput, IntArray
from headrace.ops.step import StepInputs


class SlotInputs:
    """tokens int32 [num_slots, max_model_len + 1]: known tokens by slot and position. The last column takes the
    sample of a row at the last position, which is never computed."""

    def __init__(self, step: StepInputs, max_model_len: int) -> None:
        self.step = step
        self.tokens: IntArray = np.zeros((step.num_slots, max_model_len + 1), np.int32)

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
        step, entries, logits = self.step, len(batch.slots), len(batch.logit_entry)
        ends = np.cumsum(batch.counts, dtype=np.int32)
        rows = int(ends[-1]) if entries else 0
        first_rows = ends - batch.counts
        if rows == entries:
            slots, positions = batch.slots, batch.starts
        else:
            slots = np.repeat(batch.slots, batch.counts)
            positions = np.arange(rows, dtype=np.int32) + np.repeat(batch.starts - first_rows, batch.counts)
        step.positions[:rows] = positions
        step.tokens[:rows] = self.tokens[slots, positions]
        step.entry_slot[:entries] = batch.slots
        step.entry_row[:entries] = first_rows
        step.entry_start[:entries] = batch.starts
        step.entry_count[:entries] = batch.counts
        step.logit_rows[:logits] = (first_rows - batch.starts)[batch.logit_entry] + batch.logit_position
        step.rows, step.entries, step.logits = rows, entries, logits

    def record(self, batch: Batch, output: BatchOutput) -> None:
        """Sampled tokens become known tokens of their slots."""
        slots, positions = batch.slots[batch.logit_entry], batch.logit_position + 1
        if batch.logit_sample.all():
            self.tokens[slots, positions] = output.tokens
        else:
            chosen = batch.logit_sample
            self.tokens[slots[chosen], positions[chosen]] = output.tokens[chosen]

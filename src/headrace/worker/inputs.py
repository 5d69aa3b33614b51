"""From a Batch to the arrays a program reads. SlotInputs owns the known tokens of every slot and has StepInputs filled
(csrc/bindings_inputs.cpp); what it costs does not grow with the number of running requests, only with joins and rows.
"""

import numpy as np

from headrace.core.batch import EMPTY, Batch, BoolArray, IntArray
from headrace.ops.kernels import kernels
from headrace.ops.step import StepInputs


class SlotInputs:
    """tokens int32 [num_slots, max_model_len + 1]: known tokens by slot and position. The last column takes the
    sample of a row at the last position, which is never computed. logit_slots, logit_positions int32 [logits]: of which
    slot each logit row of the step is, and the position of the token that it names; valid until the next step."""

    def __init__(self, step: StepInputs, max_model_len: int) -> None:
        self.step = step
        self.tokens: IntArray = np.zeros((step.num_slots, max_model_len + 1), np.int32)
        self.logit_slots = self.logit_positions = EMPTY
        self._slots: IntArray = np.zeros(step.max_logits, np.int32)
        self._positions: IntArray = np.zeros(step.max_logits, np.int32)
        self._filler = kernels.StepFiller(
            self.tokens,
            step.tokens,
            step.positions,
            step.entry_slot,
            step.entry_row,
            step.entry_start,
            step.entry_count,
            step.logit_rows,
            self._slots,
            self._positions,
        )

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
        """Write rows, entries and logit rows of this step. ValueError for an index out of range."""
        step, drafts = self.step, batch.drafts
        told = (None, None, None) if drafts is None else (drafts.slot, drafts.position, drafts.token)
        step.rows = self._filler.fill(
            batch.slots, batch.starts, batch.counts, batch.logit_entry, batch.logit_position, *told
        )
        step.entries, step.logits = len(batch.slots), len(batch.logit_entry)
        self.logit_slots, self.logit_positions = self._slots[: step.logits], self._positions[: step.logits]

    def record(self, sample: BoolArray, tokens: IntArray) -> None:
        """What the step's logit rows sampled becomes known."""
        self._filler.record(sample, tokens)

"""Runner: one step on one device. It applies what a Batch changed, fills the program's inputs, runs program and
sampler, and writes samples back where the next step reads them. It decides nothing.
"""

from typing import Protocol

from headrace.core.batch import Batch, BatchOutput, FloatArray
from headrace.ops.sampling import Sampler, SamplingTable, empty_output
from headrace.worker.disk_blocks import DiskBlocks
from headrace.worker.grammar import GrammarMasks
from headrace.worker.inputs import SlotInputs
from headrace.worker.kv_cache import KVCache


class BoundProgram(Protocol):
    """A program bound to its inputs (ops/reference.py, ops/cpu.py)."""

    def run(self) -> FloatArray:
        """Compute the step that the inputs describe: logits float32 [logit rows, vocab], valid until the next."""
        ...


class Runner:
    """Owns inputs, cache, sampling parameters and program; the parts share memory by construction."""

    def __init__(
        self,
        program: BoundProgram,
        sampler: Sampler,
        table: SamplingTable,
        inputs: SlotInputs,
        cache: KVCache,
        grammars: GrammarMasks,
        disk: DiskBlocks | None = None,
    ) -> None:
        self._program = program
        self._sampler = sampler
        self._table = table
        self._inputs = inputs
        self._cache = cache
        self._grammars = grammars
        self._disk = disk
        self._moved: Batch | None = None

    def run(self, batch: Batch) -> BatchOutput:
        """Leaves, joins, edits, copies, then the step. If the step raises, only the first four have happened."""
        for slot in batch.leaves:
            self._table.clear(slot)
            self._grammars.leave(slot)
        for join in batch.joins:
            self._table.set(
                join.slot,
                join.params,
                seed=join.seed,
                choice=join.choice,
                prompt_len=join.prompt_len,
                eos_ids=join.eos_ids,
            )
            self._grammars.join(join)
        self._inputs.apply(batch)
        # A step that was interrupted is run again, but by then its copies' sources may have been written to.
        if batch is not self._moved:
            self._cache.copy(batch.copies)
            if self._disk is not None:
                self._disk.begin(batch.transfers)
            self._moved = batch
        if len(batch.slots) == 0:
            return empty_output(batch.step, 0, -1)
        inputs = self._inputs
        inputs.fill(batch)
        self._grammars.begin(inputs.logit_slots, inputs.logit_positions, batch.logit_sample, inputs.tokens)
        try:
            logits = self._program.run()
        finally:
            form = self._grammars.take()
        if len(batch.logit_entry) == 0:
            return empty_output(batch.step, 0, -1)
        output = self._sampler.run(
            batch.step,
            logits,
            inputs.logit_slots,
            inputs.logit_positions,
            batch.logit_sample,
            batch.logit_top,
            inputs.tokens,
            None if form is None else form.masks,
        )
        if form is not None and form.faults:
            output.failed[list(form.faults)] = True
            output.reasons.update(form.faults)
        inputs.record(batch.logit_sample, output.tokens)
        return output

"""Sampling on the CPU kernels (csrc/sampling.cpp): rows are shared out among a pool's threads, and every number is
the one that ops/sampling.py defines, to the bit, on every instruction set.
"""

from typing import Any

from headrace.core.batch import EMPTY, BatchOutput, BoolArray, FloatArray, IntArray, TokenMasks
from headrace.ops.kernels import kernels as _kernels
from headrace.ops.sampling import SamplingTable, empty_output

_ROWS = 256


class CpuSampler:
    """kernels, pool: the `_kernels.Kernels` and `_kernels.ThreadPool` to run on; the pool may be a program's, as
    long as both are not run at once."""

    def __init__(self, table: SamplingTable, *, kernels: Any, pool: Any) -> None:
        self._table = table
        self._tokens: IntArray = EMPTY
        self._failed: BoolArray = EMPTY > 0
        self._used = 0
        self._sampler = _kernels.Sampler(
            kernels,
            pool,
            table.vocab_size,
            table.temperature,
            table.top_p,
            table.min_p,
            table.repetition,
            table.frequency,
            table.presence,
            table.top_k,
            table.prompt_len,
            table.choice,
            table.seed,
        )

    def _unscored(self, step: int, rows: int) -> BatchOutput:
        """A BatchOutput without log-probabilities, whose arrays are cut from larger ones: that takes less than to make
        them."""
        self._used += rows
        if self._used > len(self._tokens):
            whole = empty_output(step, max(rows, _ROWS), -1)
            self._tokens, self._failed, self._used = whole.tokens, whole.failed, rows
        here = slice(self._used - rows, self._used)
        return BatchOutput(step, self._tokens[here], self._failed[here])

    def run(
        self,
        step: int,
        logits: FloatArray,
        slots: IntArray,
        positions: IntArray,
        sample: BoolArray,
        top: IntArray,
        history: IntArray,
        masks: TokenMasks | None = None,
    ) -> BatchOutput:
        """As ops/sampling.Sampler. ValueError if shapes disagree or an index is out of range."""
        most = max(top.tolist(), default=-1)
        output = empty_output(step, len(slots), most) if most >= 0 else self._unscored(step, len(slots))
        begin, ids, values = self._table.adjustments(slots, positions, history) or (None, None, None)
        masks = self._table.masks(slots, masks)
        self._sampler.run(
            logits,
            slots,
            positions,
            sample,
            top,
            history,
            begin,
            ids,
            values,
            None if masks is None else masks.row,
            None if masks is None else masks.bits,
            output.tokens,
            output.failed,
            output.logprob,
            output.rank,
            output.top_ids,
            output.top_logprobs,
        )
        return output

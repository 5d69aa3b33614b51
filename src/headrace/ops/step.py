"""StepInputs: the arrays a program reads in one step. They are allocated once at their largest size and bound by
pointer; a step only fills the front of each and sets the counts.
"""

import numpy as np
import numpy.typing as npt

from headrace.core.kv_layout import KVLayout

Int32 = npt.NDArray[np.int32]


def aligned_zeros(size: int, alignment: int = 4096) -> npt.NDArray[np.uint8]:
    """uint8 [size], zero, starting at a multiple of `alignment`; untouched pages cost no memory."""
    raw = np.zeros(size + alignment, np.uint8)
    offset = -raw.ctypes.data % alignment
    return raw[offset : offset + size]


class StepInputs:
    """tokens, positions int32 [max_tokens]: one per row. Entry e is a run of rows of one sequence:
    entry_slot, entry_row, entry_start, entry_count int32 [max_entries] (slot, first row, first position, rows).
    logit_rows int32 [max_logits]: flat rows whose logits are wanted. tables[g] int32 [num_slots, max_blocks]:
    block ids. kv[g] uint8 [num_blocks[g] * block_bytes]: the cache. `rows`, `entries`, `logits` are the counts."""

    def __init__(
        self,
        layouts: tuple[KVLayout, ...],
        num_blocks: tuple[int, ...],
        *,
        max_tokens: int,
        num_slots: int,
        max_model_len: int,
        max_logits: int | None = None,
        kv: list[npt.NDArray[np.uint8]] | None = None,
    ) -> None:
        self.layouts = layouts
        self.max_tokens = max_tokens
        self.num_slots = num_slots
        self.max_logits = max_tokens if max_logits is None else max_logits
        self.tokens: Int32 = np.zeros(max_tokens, np.int32)
        self.positions: Int32 = np.zeros(max_tokens, np.int32)
        entries = min(max_tokens, num_slots)
        self.entry_slot: Int32 = np.zeros(entries, np.int32)
        self.entry_row: Int32 = np.zeros(entries, np.int32)
        self.entry_start: Int32 = np.zeros(entries, np.int32)
        self.entry_count: Int32 = np.zeros(entries, np.int32)
        self.logit_rows: Int32 = np.zeros(self.max_logits, np.int32)
        self.tables: list[Int32] = [
            np.zeros((num_slots, -(-max_model_len // layout.block_size)), np.int32) for layout in layouts
        ]
        if kv is None:
            kv = [aligned_zeros(n * layout.block_bytes) for n, layout in zip(num_blocks, layouts, strict=True)]
        self.kv = kv
        self.rows = 0
        self.entries = 0
        self.logits = 0

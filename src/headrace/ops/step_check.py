"""What must hold for a step before any of it is computed: an index out of range is an error here, never a wild
read. The CPU kernels make the same checks in C++ (csrc/program.cpp)."""

import numpy as np

from headrace.ops.program import Attention, Program
from headrace.ops.step import Int32, StepInputs


def check_step(program: Program, inputs: StepInputs) -> None:
    """Raise ValueError, naming the array, the value and what is allowed."""
    rows, entries, logits = inputs.rows, inputs.entries, inputs.logits
    _count("rows", rows, inputs.max_tokens)
    _count("entries", entries, len(inputs.entry_slot))
    _count("logits", logits, inputs.max_logits)
    slots, counts = inputs.entry_slot[:entries], inputs.entry_count[:entries]
    _inside("tokens", inputs.tokens[:rows], program.vocab_size)
    _inside("logit_rows", inputs.logit_rows[:logits], rows)
    _inside("entry_slot", slots, inputs.num_slots)
    if (counts < 1).any() or counts.sum() != rows:
        raise ValueError(f"entry_count must be at least 1 each and {rows} (rows) together, got {counts.tolist()}")
    first = np.cumsum(counts) - counts
    if (inputs.entry_row[:entries] != first).any():
        raise ValueError(f"entry_row must be {first.tolist()}, got {inputs.entry_row[:entries].tolist()}")
    starts = inputs.entry_start[:entries]
    positions = np.repeat(starts - first, counts) + np.arange(rows, dtype=np.int32)
    if (inputs.positions[:rows] != positions).any():
        raise ValueError("positions must run on from entry_start in every entry")
    for group, layout in enumerate(program.kv):
        table = inputs.tables[group]
        _inside("positions", positions, table.shape[1] * layout.block_size)
        num_blocks = len(inputs.kv[group]) // layout.block_bytes
        window = group_window(program, group)
        first_used = np.array([first_block(int(start), window, layout.block_size) for start in starts], np.int32)
        end = -(-(starts + counts) // layout.block_size)
        index = np.arange(table.shape[1])
        reached = (first_used[:, None] <= index) & (index < end[:, None])
        _inside(f"tables[{group}]", table[slots][reached], num_blocks)
    for name, vector in program.vectors.items():
        if vector.ndim == 3:  # a rope table
            _inside(f"positions (rope table {name})", positions, len(vector))


def group_window(program: Program, group: int) -> int | None:
    """The widest window that any attention over a KV group has: None if one sees everything."""
    windows = [op.window for op in program.ops if isinstance(op, Attention) and op.group == group]
    return None if None in windows or not windows else max(w for w in windows if w is not None)


def first_block(start: int, window: int | None, block_size: int) -> int:
    """Index of the first block that a row at position `start` reads; what lies before may have been freed."""
    return 0 if window is None else max(0, start - window + 1) // block_size


def _count(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be from 0 to {most}, got {value}")


def _inside(name: str, values: Int32, end: int) -> None:
    wrong = values[(values < 0) | (values >= end)]
    if wrong.size:
        raise ValueError(f"{name} must be from 0 to {end - 1}, got {wrong.flat[0]}")

"""How much work an op of a program is in one step: arithmetic operations and bytes read from memory. Only products
of matrices and attention count; the others take little of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.core.kv_layout import KVLayout
from headrace.ops.matrix import Matrix
from headrace.ops.program import Attention, Linear, Program


@dataclass(frozen=True, slots=True)
class Work:
    """name: what the op is called in reports. operations counts a multiplication and an addition as two."""

    name: str
    operations: int
    bytes: int


def linear_works(program: Program, *, rows: int, logits: int) -> list[Work]:
    """Every Linear of the program, in order. The program must still hold its matrices."""
    works = []
    for op in program.ops:
        if isinstance(op, Linear):
            matrix = program.matrices[op.matrix]
            count = logits if program.buffers[op.output].rows == "logits" else rows
            name = f"{op.matrix.rpartition('.')[2]} {matrix.scheme}"
            works.append(Work(name, 2 * count * matrix.n * matrix.k, _bytes(matrix) if count else 0))
    return works


def attention_works(
    ops: Sequence[object], layouts: Mapping[int, KVLayout], entries: Sequence[tuple[int, int]]
) -> list[Work]:
    """Every Attention, in order. entries: first position and rows of each sequence."""
    works = []
    for op in ops:
        if isinstance(op, Attention):
            layout, window = layouts[op.group], op.window or 1 << 62
            reached = sum(min(p + 1, window) for start, count in entries for p in range(start, start + count))
            tokens = sum(min(start + count, window + count - 1) for start, count in entries)
            works.append(
                Work(
                    "attention",
                    2 * op.heads * (op.head_dim + op.v_head_dim) * reached,
                    tokens * op.kv_heads * layout.unit_bytes // layout.block_size,
                )
            )
    return works


def _bytes(matrix: Matrix) -> int:
    """As packed: scales and minimums as IEEE half, as the usual file formats have them."""
    return matrix.data.nbytes + sum(part.nbytes // 2 for part in (matrix.scale, matrix.minimum) if part is not None)

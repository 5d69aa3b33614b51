"""Which ops leave their output in int8 beside float32, for the quantized linears that read it. A row is quantized by
the task that produced it where that task has whole runs of activations; otherwise an op of its own follows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.ops import program as ir
from headrace.ops.matrix import ACTIVATION_GROUP


class HasKind(Protocol):
    """A matrix, packed or not."""

    @property
    def k(self) -> int: ...

    @property
    def quantized(self) -> bool: ...


@dataclass(slots=True)
class Int8Plan:
    """widths: buffer -> columns of its int8 form. fused: index of an op -> columns that it quantizes itself.
    separate: index of an op -> buffer and columns to quantize after it."""

    widths: dict[str, int] = field(default_factory=dict)
    fused: dict[int, int] = field(default_factory=dict)
    separate: dict[int, tuple[str, int]] = field(default_factory=dict)


def plan_int8(ops: list[ir.Op], matrices: Mapping[str, HasKind]) -> Int8Plan:
    plan = Int8Plan()
    writer: dict[str, int] = {}
    current: dict[str, int] = {}  # buffer -> columns whose int8 form is up to date
    for index, op in enumerate(ops):
        if isinstance(op, ir.Linear | ir.ExpertLinear) and matrices[op.matrix].quantized:
            width = matrices[op.matrix].k
            if isinstance(op, ir.ExpertLinear) and not op.shared_input:
                width *= op.taken
            if current.get(op.input) != width:
                if op.input in current:
                    raise ValueError(f"quantized linears of {current[op.input]} and {width} inputs read {op.input}")
                _require(plan, ops, writer[op.input], op.input, width)
                current[op.input] = width
        output = written(op)
        writer[output] = index
        current.pop(output, None)
    return plan


def written(op: ir.Op) -> str:
    """The buffer that an op writes."""
    if isinstance(op, ir.RopeKV):
        return op.qkv
    if isinstance(op, ir.Softcap):
        return op.buffer
    return op.output


def _require(plan: Int8Plan, ops: list[ir.Op], index: int, buffer: str, width: int) -> None:
    plan.widths[buffer] = max(width, plan.widths.get(buffer, 0))
    if _quantizes_itself(ops[index]):
        plan.fused[index] = width
    else:
        plan.separate[index] = (buffer, width)


def _quantizes_itself(op: ir.Op) -> bool:
    if isinstance(op, ir.Attention):  # a task has the query heads of one KV head
        return op.heads // op.kv_heads * op.v_head_dim % ACTIVATION_GROUP == 0
    if isinstance(op, ir.RmsNorm):
        return op.columns is None
    return isinstance(op, ir.Add | ir.GatedActivation | ir.SelectRows)

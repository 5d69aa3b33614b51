"""A Program on the CPU kernels: matrices are packed and every array bound once, then a step is one call into C++
with the GIL released. A step's numbers do not depend on the number of threads; they do depend on the kernel set,
so its name and version belong to the numerics fingerprint.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ConfigError
from headrace.core.kv_layout import KVLayout
from headrace.ops import program as ir
from headrace.ops.cpu_weights import CpuWeights, Progress
from headrace.ops.int8_plan import plan_int8
from headrace.ops.kernels import kernels as _kernels
from headrace.ops.matrix import ACTIVATION_GROUP
from headrace.ops.step import StepInputs, aligned_zeros
from headrace.ops.step_check import group_window

Float = npt.NDArray[np.float32]
VERSION: str = _kernels.VERSION
_KV_TYPES = {"bf16": _kernels.KVType.BF16, "fp32": _kernels.KVType.F32, "int8": _kernels.KVType.I8}
_ACTIVATIONS = {"silu": _kernels.Activation.SILU, "gelu_tanh": _kernels.Activation.GELU_TANH}


def available_isas() -> list[str]:
    """Instruction sets that the kernels were built for and this processor has, best first."""
    isas: list[str] = _kernels.available_isas()
    return isas


def cpu_features() -> list[str]:
    """Features of this processor that matter to the kernels."""
    features: list[str] = _kernels.cpu_features()
    return features


class CpuProgram:
    """Packs the program's matrices on construction (ops/cpu_weights.py), unless they are given packed."""

    def __init__(
        self,
        program: ir.Program,
        inputs: StepInputs,
        *,
        threads: int = 1,
        isa: str = "auto",
        weights: CpuWeights | None = None,
        progress: Progress | None = None,
    ) -> None:
        """isa: auto, or one of available_isas(). threads and progress are for packing; weights, where given, bring
        their threads. ConfigError for threads or isa that cannot be had."""
        try:
            self.kernels = _kernels.Kernels(isa)
        except ValueError as error:
            raise ConfigError(str(error), field="isa") from None
        if weights is None:
            weights = CpuWeights(threads)
            weights.pack(program, progress=progress)
        self._weights = weights
        self.inputs = inputs
        self.threads = self._weights.threads
        self.pool = self._weights.pool
        self._packed = self._weights.packed
        self._arrays: list[Any] = [inputs]  # bound by address, so kept
        self._int8 = plan_int8(program.ops, self._packed)
        self._bind(program)

    def _bind(self, program: ir.Program) -> None:
        """Tell the kernels every buffer and op."""
        inputs = self.inputs
        self._program = _kernels.Program(
            self.kernels,
            self.pool,
            inputs.tokens,
            inputs.positions,
            inputs.entry_slot,
            inputs.entry_row,
            inputs.entry_start,
            inputs.entry_count,
            inputs.logit_rows,
            inputs.num_slots,
            program.vocab_size,
        )
        self._data: dict[str, Float] = {}
        self._index = {name: self._add_buffer(buffer) for name, buffer in program.buffers.items()}
        for group, layout in enumerate(program.kv):
            self._add_group(group, layout, group_window(program, group))
        self._vectors = {name: np.ascontiguousarray(v, np.float32) for name, v in program.vectors.items()}
        for position, op in enumerate(program.ops):
            _BINDERS[type(op)](self, op, self._int8.fused.get(position, 0))
            if position in self._int8.separate:
                buffer, width = self._int8.separate[position]
                self._program.add_quantize(self._index[buffer], width)
        self._logits = self._data[program.logits]

    def run(self) -> Float:
        """One step: a view float32 [logits, vocab_size], overwritten by the next. ValueError, before anything is
        computed, for an index out of range."""
        self._program.run(self.inputs.rows, self.inputs.entries, self.inputs.logits)
        return self._logits[: self.inputs.logits]

    def buffer(self, name: str) -> Float:
        """float32 [max rows, width]: what the last step left in its first rows."""
        return self._data[name]

    @property
    def isa(self) -> str:
        """The kernel set in use."""
        name: str = self.kernels.name
        return name

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed matrices and of vectors."""
        return self._weights.nbytes + sum(v.nbytes for v in self._vectors.values())

    @property
    def activation_bytes(self) -> int:
        """Bytes set aside for buffers; pages that no step has touched take no memory."""
        return sum(a.nbytes for a in self._arrays if isinstance(a, np.ndarray))

    def profile(self) -> list[tuple[str, int]]:
        """Run one step and return each op's name and nanoseconds."""
        self._program.profiling = True
        self.run()
        self._program.profiling = False
        return list(zip(self._program.op_names, self._program.op_times, strict=True))

    def _allocate(self, rows: int, width: int, dtype: Any) -> Any:
        size = np.dtype(dtype).itemsize
        array = aligned_zeros(max(1, rows * width * size)).view(dtype)[: rows * width].reshape(rows, width)
        self._arrays.append(array)
        return array

    def _add_buffer(self, buffer: ir.Buffer) -> int:
        logits = buffer.rows == "logits"
        rows = self.inputs.max_logits if logits else self.inputs.max_tokens
        data = self._allocate(rows, buffer.width, np.float32)
        self._data[buffer.name] = data
        width = self._int8.widths.get(buffer.name, 0)
        if width == 0:
            index: int = self._program.add_buffer(data, logits)
        else:
            q = self._allocate(rows, width, np.int8)
            scale = self._allocate(rows, width // ACTIVATION_GROUP, np.float32)
            scaled_sum = self._allocate(rows, width // ACTIVATION_GROUP, np.float32)
            index = self._program.add_buffer(data, logits, q, scale, scaled_sum)
        return index

    def _add_group(self, group: int, layout: KVLayout, window: int | None) -> None:
        self._program.add_group(
            cache=self.inputs.kv[group],
            table=self.inputs.tables[group],
            type=_KV_TYPES[layout.dtype],
            block_size=layout.block_size,
            kv_heads=layout.kv_heads,
            k_dim=layout.k_dim,
            v_dim=layout.v_dim,
            unit_bytes=layout.unit_bytes,
            head_bytes=layout.head_bytes,
            block_bytes=layout.block_bytes,
            v_offset=layout.v_offset,
            k_scale_offset=layout.k_scale_offset,
            v_scale_offset=layout.v_scale_offset,
            window=window or 0,
        )

    def _bind_embed(self, op: ir.Embed, int8: int) -> None:
        self._program.add_embed(self._index[op.output], self._packed[op.matrix], op.scale)

    def _bind_rms_norm(self, op: ir.RmsNorm, int8: int) -> None:
        begin, end = op.columns or (0, self._data[op.input].shape[1])
        weight = self._vectors[op.weight]
        self._program.add_rms_norm(self._index[op.input], self._index[op.output], weight, begin, end, op.eps, int8)

    def _bind_linear(self, op: ir.Linear, int8: int) -> None:
        bias = None if op.bias is None else self._vectors[op.bias]
        source, output, matrix = self._index[op.input], self._index[op.output], self._packed[op.matrix]
        self._program.add_linear(source, output, matrix, bias, op.accumulate, op.scale, op.k_segment)

    def _bind_rope_kv(self, op: ir.RopeKV, int8: int) -> None:
        table = None if op.table is None else self._vectors[op.table]
        self._program.add_rope_kv(self._index[op.qkv], _head_shape(op), table, op.interleaved)

    def _bind_attention(self, op: ir.Attention, int8: int) -> None:
        qkv, output = self._index[op.qkv], self._index[op.output]
        softcap, window = op.softcap or 0.0, op.window or 0
        self._program.add_attention(qkv, output, _head_shape(op), op.scale, softcap, window, int8)

    def _bind_gated_activation(self, op: ir.GatedActivation, int8: int) -> None:
        width = self._data[op.output].shape[1]
        activation = _ACTIVATIONS[op.activation]
        self._program.add_gated_activation(self._index[op.input], self._index[op.output], width, activation, int8)

    def _bind_add(self, op: ir.Add, int8: int) -> None:
        width = self._data[op.output].shape[1]
        self._program.add_add(self._index[op.input], self._index[op.output], width, op.scale, int8)

    def _bind_route_experts(self, op: ir.RouteExperts, int8: int) -> None:
        experts = self._data[op.input].shape[1]
        self._program.add_route_experts(self._index[op.input], self._index[op.output], experts, op.taken, op.normalize)

    def _bind_expert_linear(self, op: ir.ExpertLinear, int8: int) -> None:
        source, output, routes = self._index[op.input], self._index[op.output], self._index[op.routes]
        shape = (op.experts, op.taken, op.shared_input, op.column, op.k_segment)
        self._program.add_expert_linear(source, output, routes, self._packed[op.matrix], *shape)

    def _bind_mix_experts(self, op: ir.MixExperts, int8: int) -> None:
        source, output, routes = self._index[op.input], self._index[op.output], self._index[op.routes]
        self._program.add_mix_experts(source, output, routes, self._data[op.output].shape[1], op.taken, op.scale)

    def _bind_select_rows(self, op: ir.SelectRows, int8: int) -> None:
        width = self._data[op.output].shape[1]
        self._program.add_select_rows(self._index[op.input], self._index[op.output], width, int8)

    def _bind_softcap(self, op: ir.Softcap, int8: int) -> None:
        self._program.add_softcap(self._index[op.buffer], self._data[op.buffer].shape[1], op.cap)


def _head_shape(op: ir.RopeKV | ir.Attention) -> Any:
    return _kernels.HeadShape(op.group, op.layer, op.heads, op.kv_heads, op.head_dim, op.v_head_dim)


_BINDERS: dict[type[ir.Op], Callable[[CpuProgram, Any, int], None]] = {
    ir.Embed: CpuProgram._bind_embed,
    ir.RmsNorm: CpuProgram._bind_rms_norm,
    ir.Linear: CpuProgram._bind_linear,
    ir.RopeKV: CpuProgram._bind_rope_kv,
    ir.Attention: CpuProgram._bind_attention,
    ir.GatedActivation: CpuProgram._bind_gated_activation,
    ir.Add: CpuProgram._bind_add,
    ir.RouteExperts: CpuProgram._bind_route_experts,
    ir.ExpertLinear: CpuProgram._bind_expert_linear,
    ir.MixExperts: CpuProgram._bind_mix_experts,
    ir.SelectRows: CpuProgram._bind_select_rows,
    ir.Softcap: CpuProgram._bind_softcap,
}

"""The numpy interpreter of a Program: the definition of every op, in float32, clear before fast. It reads keys and
values only as the cache stores them, and quantizes activations where the kernels do, so that the two differ by
rounding alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.ops import program as ir
from headrace.ops.kv_codec import KVCodec, narrow_bf16, widen_bf16
from headrace.ops.matrix import ACTIVATION_GROUP, Matrix
from headrace.ops.step import StepInputs
from headrace.ops.step_check import check_step, first_block

Float = npt.NDArray[np.float32]


class ReferenceProgram:
    """Runs a program over the front of `inputs`; matrices are dequantized on first use and kept. bf16: matrices of bf16
    see their input rounded to bf16, as on kernels that multiply so (avx512bf16)."""

    def __init__(self, program: ir.Program, inputs: StepInputs, *, bf16: bool = False) -> None:
        self._bf16 = bf16
        self.program = program
        self.inputs = inputs
        self._data = {
            name: np.zeros((inputs.max_tokens if b.rows == "tokens" else inputs.max_logits, b.width), np.float32)
            for name, b in program.buffers.items()
        }
        self._buffers: dict[str, Float] = {}  # the rows of this step
        self._dequantized: dict[str, Float] = {}

    def run(self) -> Float:
        """One step; returns float32 [logits, vocab_size]. ValueError for an index out of range."""
        check_step(self.program, self.inputs)
        self._buffers = {
            name: self._data[name][: self.inputs.rows if b.rows == "tokens" else self.inputs.logits]
            for name, b in self.program.buffers.items()
        }
        for op in self.program.ops:
            _DEFINITIONS[type(op)](self, op)
        return self._buffers[self.program.logits]

    def buffer(self, name: str) -> Float:
        """float32 [max rows, width]: what the last step left in its first rows."""
        return self._data[name]

    def _weights(self, name: str) -> Float:
        if name not in self._dequantized:
            self._dequantized[name] = self.program.matrices[name].dequantize()
        return self._dequantized[name]

    def _embed(self, op: ir.Embed) -> None:
        tokens = self.inputs.tokens[: self.inputs.rows]
        self._buffers[op.output][:] = self._weights(op.matrix)[tokens] * np.float32(op.scale)

    def _rms_norm(self, op: ir.RmsNorm) -> None:
        begin, end = op.columns or (0, self._buffers[op.input].shape[1])
        x = self._buffers[op.input][:, begin:end]
        width = op.width or end - begin
        groups = x.reshape(len(x), (end - begin) // width, width)
        scale = 1 / np.sqrt(np.mean(groups * groups, axis=2, keepdims=True, dtype=np.float32) + np.float32(op.eps))
        self._buffers[op.output][:, begin:end] = (groups * scale * self.program.vectors[op.weight]).reshape(x.shape)

    def _seen(self, name: str, matrix: Matrix) -> Float:
        """A buffer as a linear with this matrix sees it."""
        x = self._buffers[name]
        if matrix.quantized:
            return round_activations(x)
        return widen_bf16(narrow_bf16(x)) if self._bf16 and matrix.scheme == "bf16" else x

    def _linear(self, op: ir.Linear) -> None:
        x = self._seen(op.input, self.program.matrices[op.matrix])
        y = x @ self._weights(op.matrix).T
        if op.bias is not None:
            y += self.program.vectors[op.bias]
        if op.accumulate:
            self._buffers[op.output] += y * np.float32(op.scale)
        else:
            self._buffers[op.output][:] = y

    def _rope_kv(self, op: ir.RopeKV) -> None:
        inputs, layout = self.inputs, self.program.kv[op.group]
        row = self._buffers[op.qkv]
        rotated = (op.heads + op.kv_heads) * op.head_dim
        positions = inputs.positions[: inputs.rows]
        if op.table is not None:
            heads = row[:, :rotated].reshape(len(row), -1, op.head_dim)
            rotate(heads, self.program.vectors[op.table][positions], op.rotary_dim, interleaved=op.interleaved)
        k = row[:, op.heads * op.head_dim : rotated].reshape(len(row), op.kv_heads, op.head_dim)
        v = row[:, rotated:].reshape(len(row), op.kv_heads, op.v_head_dim)
        slots = np.repeat(inputs.entry_slot[: inputs.entries], inputs.entry_count[: inputs.entries])
        blocks = inputs.tables[op.group][slots, positions // layout.block_size]
        KVCodec(layout, inputs.kv[op.group], op.layer).write(blocks, positions % layout.block_size, k, v)

    def _attention(self, op: ir.Attention) -> None:
        inputs, layout = self.inputs, self.program.kv[op.group]
        codec = KVCodec(layout, inputs.kv[op.group], op.layer)
        shared = op.heads // op.kv_heads
        for e in range(inputs.entries):
            row, start, count = inputs.entry_row[e], inputs.entry_start[e], inputs.entry_count[e]
            first = first_block(int(start), op.window, layout.block_size)
            table = inputs.tables[op.group][inputs.entry_slot[e], first : -(-(start + count) // layout.block_size)]
            k, v = codec.read(table)
            start -= first * layout.block_size  # positions count from the first block read
            length = int(start + count)
            q = self._buffers[op.qkv][row : row + count, : op.heads * op.head_dim]
            q = q.reshape(count, op.kv_heads, shared, op.head_dim).transpose(1, 2, 0, 3)
            score = np.float32(op.scale) * (q @ k[:, None, :length].swapaxes(2, 3))
            if op.softcap is not None:
                score = np.float32(op.softcap) * np.tanh(score / np.float32(op.softcap))
            behind = start + np.arange(count)[:, None] - np.arange(length)  # how far a key lies behind its query
            seen = (behind >= 0) & (behind < (op.window or length))
            weight = np.exp(
                np.where(seen, score, -np.inf) - score.max(axis=3, keepdims=True, where=seen, initial=-1e30)
            )
            weight /= weight.sum(axis=3, keepdims=True)
            # 0 * NaN is NaN: what lies outside a row's reach must not touch it.
            out = weight @ np.where(seen.any(axis=0)[:, None], v[:, None, :length], 0)
            self._buffers[op.output][row : row + count] = out.transpose(2, 0, 1, 3).reshape(count, -1)

    def _gated_activation(self, op: ir.GatedActivation) -> None:
        gate, up = np.split(self._buffers[op.input], 2, axis=1)
        self._buffers[op.output][:] = ACTIVATIONS[op.activation](gate) * up

    def _add(self, op: ir.Add) -> None:
        self._buffers[op.output] += self._buffers[op.input] * np.float32(op.scale)

    def _route_experts(self, op: ir.RouteExperts) -> None:
        logits = self._buffers[op.input]
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        index = np.argsort(-logits, axis=1, kind="stable")[:, : op.taken]
        taken = np.take_along_axis(weights, index, axis=1)
        if op.normalize:
            taken /= taken.sum(axis=1, keepdims=True)
        self._buffers[op.output][:] = np.concatenate([index.astype(np.float32), taken], axis=1)

    def _expert_linear(self, op: ir.ExpertLinear) -> None:
        matrix = self.program.matrices[op.matrix]
        x = self._seen(op.input, matrix)
        experts = self._weights(op.matrix).reshape(op.experts, -1, matrix.k)
        routes, n = self._buffers[op.routes].astype(np.int64), matrix.n // op.experts
        for j in range(op.taken):
            run = x if op.shared_input else x[:, j * matrix.k : (j + 1) * matrix.k]
            out = self._buffers[op.output][:, op.column + j * n : op.column + (j + 1) * n]
            for expert in np.unique(routes[:, j]):
                rows = routes[:, j] == expert
                out[rows] = run[rows] @ experts[expert].T

    def _mix_experts(self, op: ir.MixExperts) -> None:
        output = self._buffers[op.output]
        runs = self._buffers[op.input].reshape(len(output), op.taken, -1)
        for j in range(op.taken):
            weight = self._buffers[op.routes][:, op.taken + j, None]
            output += np.float32(op.scale) * weight * runs[:, j]

    def _select_rows(self, op: ir.SelectRows) -> None:
        rows = self.inputs.logit_rows[: self.inputs.logits]
        self._buffers[op.output][:] = self._buffers[op.input][rows]

    def _softcap(self, op: ir.Softcap) -> None:
        cap = np.float32(op.cap)
        self._buffers[op.buffer][:] = cap * np.tanh(self._buffers[op.buffer] / cap)


def round_activations(x: Float) -> Float:
    """What a quantized linear sees of its input: int8 times a scale (max |x| / 127) over each run of
    ACTIVATION_GROUP columns."""
    groups = x.reshape(len(x), -1, ACTIVATION_GROUP)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    rounded: Float = (np.rint(groups * inverse) * scale).reshape(x.shape)
    return rounded


def rotate(heads: Float, cos_sin: Float, rotary_dim: int, *, interleaved: bool) -> None:
    """Rotate the first rotary_dim columns of heads [rows, heads, head_dim] in place, by the angles of cos_sin
    [rows, rotary_dim / 2, 2]. Pairs are (i, i + rotary_dim / 2), or (2i, 2i + 1) if interleaved."""
    half = rotary_dim // 2
    first = slice(0, rotary_dim, 2) if interleaved else slice(0, half)
    second = slice(1, rotary_dim, 2) if interleaved else slice(half, rotary_dim)
    a, b = heads[..., first].copy(), heads[..., second].copy()
    cos, sin = cos_sin[:, None, :, 0], cos_sin[:, None, :, 1]
    heads[..., first] = a * cos - b * sin
    heads[..., second] = b * cos + a * sin


def silu(x: Float) -> Float:
    y: Float = x / (1 + np.exp(-np.clip(x, -88, None)))
    return y


def gelu_tanh(x: Float) -> Float:
    y: Float = np.float32(0.5) * x * (1 + np.tanh(np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x**3)))
    return y


ACTIVATIONS: dict[str, Callable[[Float], Float]] = {"silu": silu, "gelu_tanh": gelu_tanh}

_DEFINITIONS: dict[type[ir.Op], Callable[[ReferenceProgram, Any], None]] = {
    ir.Embed: ReferenceProgram._embed,
    ir.RmsNorm: ReferenceProgram._rms_norm,
    ir.Linear: ReferenceProgram._linear,
    ir.RopeKV: ReferenceProgram._rope_kv,
    ir.Attention: ReferenceProgram._attention,
    ir.GatedActivation: ReferenceProgram._gated_activation,
    ir.Add: ReferenceProgram._add,
    ir.RouteExperts: ReferenceProgram._route_experts,
    ir.ExpertLinear: ReferenceProgram._expert_linear,
    ir.MixExperts: ReferenceProgram._mix_experts,
    ir.SelectRows: ReferenceProgram._select_rows,
    ir.Softcap: ReferenceProgram._softcap,
}

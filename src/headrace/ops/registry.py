"""The registry of ops: each is a reference, a maker of inputs and a tolerance; providers are other ways to compute
them. A provider is right when, for every input that the makers can make, it agrees with the reference.

A case is a small program over prepared buffers and cache, so an op is tested through the same door that models use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.kv_layout import KVDtype, KVLayout
from headrace.ops import program as ir
from headrace.ops.cpu import CpuProgram
from headrace.ops.kv_codec import KVCodec
from headrace.ops.matrix import Matrix
from headrace.ops.reference import ReferenceProgram
from headrace.ops.step import StepInputs

Float = npt.NDArray[np.float32]
Rng = np.random.Generator
VOCAB = 97


class RunsProgram(Protocol):
    """What a provider makes of a program and its inputs."""

    def run(self) -> Float: ...

    def buffer(self, name: str) -> Float: ...


@dataclass(slots=True)
class Case:
    """A program of one or few ops. `fill` holds buffers before the step, `outputs` names those to compare after it;
    the caches in `inputs` are compared too."""

    program: ir.Program
    inputs: StepInputs
    outputs: tuple[str, ...]
    fill: dict[str, Float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpEntry:
    """make(rng, **options) makes a case. A provider's outputs may differ from the reference's by rtol times the
    largest reference value, plus atol."""

    make: Callable[..., Case]
    rtol: float
    atol: float = 1e-6


def step_inputs(
    layouts: tuple[KVLayout, ...],
    entries: Sequence[tuple[int, int]],
    rng: Rng,
    *,
    logits: int = 1,
    max_model_len: int = 0,
) -> StepInputs:
    """Inputs for entries (start, count), one to a slot, over caches whose blocks are dealt at random."""
    longest = max([max_model_len, *(start + count for start, count in entries)])
    rows = sum(count for _, count in entries)
    num_blocks = tuple(len(entries) * -(-longest // layout.block_size) for layout in layouts)
    inputs = StepInputs(
        layouts, num_blocks, max_tokens=rows, num_slots=len(entries), max_model_len=longest, max_logits=rows
    )
    for group, table in enumerate(inputs.tables):
        table[:] = rng.permutation(num_blocks[group]).reshape(table.shape)
    set_entries(inputs, list(enumerate(entries)))
    inputs.tokens[:] = rng.integers(0, VOCAB, rows)
    inputs.logits = min(logits, rows)
    inputs.logit_rows[: inputs.logits] = rng.integers(0, rows, inputs.logits)
    return inputs


def set_entries(inputs: StepInputs, entries: Sequence[tuple[int, tuple[int, int]]]) -> None:
    """Describe a step of entries (slot, (start, count)); rows follow one another."""
    row = 0
    for e, (slot, (start, count)) in enumerate(entries):
        inputs.entry_slot[e], inputs.entry_row[e] = slot, row
        inputs.entry_start[e], inputs.entry_count[e] = start, count
        inputs.positions[row : row + count] = start + np.arange(count)
        row += count
    inputs.entries, inputs.rows = len(entries), row


def fill_cache(inputs: StepInputs, rng: Rng) -> None:
    """Random keys and values in every slot of every block."""
    for layout, cache in zip(inputs.layouts, inputs.kv, strict=True):
        blocks = np.arange(len(cache) // layout.block_bytes, dtype=np.int32)
        for layer in range(layout.num_layers):
            for slot in range(layout.block_size):
                k = rng.standard_normal((len(blocks), layout.kv_heads, layout.k_dim), np.float32)
                v = rng.standard_normal((len(blocks), layout.kv_heads, layout.v_dim), np.float32)
                KVCodec(layout, cache, layer).write(blocks, np.full_like(blocks, slot), k, v)


def random_matrix(rng: Rng, scheme: Any, n: int, k: int, group: int = 32) -> Matrix:
    """Entries of about 1 / sqrt(k), so that products keep the size of their inputs."""
    spread = np.float32(k**-0.5)
    if scheme == "f32":
        return Matrix("f32", n, k, rng.standard_normal((n, k), np.float32) * spread)
    if scheme == "bf16":
        floats = rng.standard_normal((n, k), np.float32) * spread
        return Matrix("bf16", n, k, (floats.view(np.uint32) >> 16).astype(np.uint16))
    scale = (rng.random((n, k // group), np.float32) + np.float32(0.5)) * spread
    if scheme == "q8":
        q8 = rng.integers(-127, 128, (n, k)).astype(np.int8)
        return Matrix("q8", n, k, q8, group, scale / np.float32(64))
    q4 = rng.integers(0, 256, (n, k // 32, 16)).astype(np.uint8)
    return Matrix("q4", n, k, q4, group, scale / np.float32(4), scale * np.float32(-2))


def _rope_table(rng: Rng, positions: int, rotary_dim: int) -> Float:
    angle = rng.random((positions, rotary_dim // 2), np.float32) * np.float32(6.28)
    return np.stack([np.cos(angle), np.sin(angle)], axis=2)


def _case(
    ops: list[ir.Op],
    buffers: list[ir.Buffer],
    inputs: StepInputs,
    rng: Rng,
    outputs: tuple[str, ...],
    matrices: dict[str, Matrix] | None = None,
    vectors: dict[str, Float] | None = None,
) -> Case:
    """A case whose buffers start with random values."""
    named = {b.name: b for b in (*buffers, ir.Buffer("logits", VOCAB, "logits"))}
    program = ir.Program(ops, named, matrices or {}, vectors or {}, inputs.layouts, VOCAB)
    rows = {"tokens": inputs.max_tokens, "logits": inputs.max_logits}
    fill = {b.name: rng.standard_normal((rows[b.rows], b.width), np.float32) for b in buffers}
    return Case(program, inputs, outputs, fill)


def make_embed(rng: Rng, *, rows: int = 5, width: int = 64, scheme: str = "f32", scale: float = 1.5) -> Case:
    matrices = {"table": random_matrix(rng, scheme, VOCAB, width)}
    inputs = step_inputs((), [(0, rows)], rng)
    return _case([ir.Embed("x", "table", scale)], [ir.Buffer("x", width)], inputs, rng, ("x",), matrices)


def make_rms_norm(
    rng: Rng, *, rows: int = 5, width: int = 72, group: int = 0, columns: tuple[int, int] | None = None
) -> Case:
    weights = {"w": rng.standard_normal(group or width, np.float32)}
    inputs = step_inputs((), [(0, rows)], rng)
    op = ir.RmsNorm("x", "y", "w", 1e-5, group, columns)
    return _case([op], [ir.Buffer("x", width), ir.Buffer("y", width)], inputs, rng, ("y",), None, weights)


def make_linear(
    rng: Rng,
    *,
    rows: int = 5,
    n: int = 40,
    k: int = 96,
    scheme: str = "f32",
    group: int = 32,
    bias: bool = False,
    accumulate: bool = False,
    k_segment: int = 0,
) -> Case:
    op = ir.Linear("x", "y", "w", "b" if bias else None, accumulate, 0.5 if accumulate else 1.0, k_segment)
    inputs = step_inputs((), [(0, rows)], rng)
    norm = ir.RmsNorm("input", "x", "ones", 1e-6)  # so that x has a producer, which may quantize it
    buffers = [ir.Buffer("input", k), ir.Buffer("x", k), ir.Buffer("y", n)]
    vectors = {"ones": np.ones(k, np.float32), "b": rng.standard_normal(n, np.float32)}
    return _case([norm, op], buffers, inputs, rng, ("y",), {"w": random_matrix(rng, scheme, n, k, group)}, vectors)


def make_attention(
    rng: Rng,
    *,
    entries: Sequence[tuple[int, int]] = ((0, 5), (37, 1)),
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 32,
    v_head_dim: int = 0,
    block_size: int = 16,
    kv_dtype: KVDtype = "bf16",
    window: int | None = None,
    softcap: float | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
) -> Case:
    """RopeKV and Attention of the second of two layers, over a cache that holds the earlier positions."""
    v_dim = v_head_dim or head_dim
    layout = KVLayout(2, kv_heads, head_dim, v_dim, block_size, kv_dtype)
    inputs = step_inputs((layout,), entries, rng)
    fill_cache(inputs, rng)
    rotary = head_dim if rotary_dim is None else rotary_dim
    longest = max(start + count for start, count in entries)
    vectors = {"rope": _rope_table(rng, longest, rotary)} if rotary else {}
    ops: list[ir.Op] = [
        ir.RopeKV("qkv", 0, 1, heads, kv_heads, head_dim, v_dim, "rope" if rotary else None, rotary, interleaved),
        ir.Attention("qkv", "attention", 0, 1, heads, kv_heads, head_dim, v_dim, head_dim**-0.5, window, softcap),
    ]
    buffers = [
        ir.Buffer("qkv", heads * head_dim + kv_heads * (head_dim + v_dim)),
        ir.Buffer("attention", heads * v_dim),
    ]
    return _case(ops, buffers, inputs, rng, ("qkv", "attention"), None, vectors)


def make_gated_activation(rng: Rng, *, rows: int = 5, width: int = 72, activation: Any = "silu") -> Case:
    inputs = step_inputs((), [(0, rows)], rng)
    buffers = [ir.Buffer("gate_up", 2 * width), ir.Buffer("y", width)]
    case = _case([ir.GatedActivation("gate_up", "y", activation)], buffers, inputs, rng, ("y",))
    case.fill["gate_up"] *= 4
    return case


def make_add(rng: Rng, *, rows: int = 5, width: int = 72, scale: float = 0.25) -> Case:
    inputs = step_inputs((), [(0, rows)], rng)
    return _case([ir.Add("x", "y", scale)], [ir.Buffer("x", width), ir.Buffer("y", width)], inputs, rng, ("y",))


def make_route_experts(
    rng: Rng, *, rows: int = 5, experts: int = 11, taken: int = 3, normalize: bool = True, ties: bool = False
) -> Case:
    inputs = step_inputs((), [(0, rows)], rng)
    buffers = [ir.Buffer("x", experts), ir.Buffer("routes", 2 * taken)]
    case = _case([ir.RouteExperts("x", "routes", taken, normalize)], buffers, inputs, rng, ("routes",))
    if ties:
        case.fill["x"] = np.rint(case.fill["x"])
    return case


def make_expert_linear(
    rng: Rng,
    *,
    rows: int = 5,
    experts: int = 5,
    taken: int = 2,
    n: int = 48,
    k: int = 96,
    scheme: str = "f32",
    shared_input: bool = True,
    column: int = 0,
    k_segment: int = 0,
) -> Case:
    """Routes from random logits, then products with the experts they choose, in columns from `column` on."""
    width = k if shared_input else taken * k
    inputs = step_inputs((), [(0, rows)], rng)
    ops: list[ir.Op] = [
        ir.RmsNorm("input", "x", "ones", 1e-6),
        ir.RouteExperts("router", "routes", taken, True),
        ir.ExpertLinear("x", "y", "routes", "w", experts, taken, shared_input, column, k_segment),
    ]
    buffers = [
        ir.Buffer("input", width),
        ir.Buffer("x", width),
        ir.Buffer("router", experts),
        ir.Buffer("routes", 2 * taken),
        ir.Buffer("y", column + taken * n),
    ]
    matrices = {"w": random_matrix(rng, scheme, experts * n, k)}
    return _case(ops, buffers, inputs, rng, ("y",), matrices, {"ones": np.ones(width, np.float32)})


def make_mix_experts(rng: Rng, *, rows: int = 5, width: int = 72, taken: int = 3, scale: float = 0.5) -> Case:
    inputs = step_inputs((), [(0, rows)], rng)
    buffers = [ir.Buffer("x", taken * width), ir.Buffer("routes", 2 * taken), ir.Buffer("y", width)]
    return _case([ir.MixExperts("x", "y", "routes", taken, scale)], buffers, inputs, rng, ("y",))


def make_select_rows(rng: Rng, *, rows: int = 9, width: int = 24, logits: int = 4) -> Case:
    inputs = step_inputs((), [(0, rows)], rng, logits=logits)
    buffers = [ir.Buffer("x", width), ir.Buffer("last", width, "logits")]
    return _case([ir.SelectRows("x", "last")], buffers, inputs, rng, ("last",))


def make_softcap(rng: Rng, *, rows: int = 5, width: int = 600, cap: float = 3.0) -> Case:
    inputs = step_inputs((), [(0, rows)], rng)
    case = _case([ir.Softcap("x", cap)], [ir.Buffer("x", width)], inputs, rng, ("x",))
    case.fill["x"] *= 3
    return case


OPS: dict[type[ir.Op], OpEntry] = {
    ir.Embed: OpEntry(make_embed, rtol=1e-6),
    ir.RmsNorm: OpEntry(make_rms_norm, rtol=2e-6),
    ir.Linear: OpEntry(make_linear, rtol=2e-5),
    ir.RopeKV: OpEntry(make_attention, rtol=2e-5),
    ir.Attention: OpEntry(make_attention, rtol=2e-5),
    ir.GatedActivation: OpEntry(make_gated_activation, rtol=2e-6),
    ir.Add: OpEntry(make_add, rtol=2e-6),
    ir.RouteExperts: OpEntry(make_route_experts, rtol=2e-6),
    ir.ExpertLinear: OpEntry(make_expert_linear, rtol=2e-5),
    ir.MixExperts: OpEntry(make_mix_experts, rtol=2e-6),
    ir.SelectRows: OpEntry(make_select_rows, rtol=0, atol=0),
    ir.Softcap: OpEntry(make_softcap, rtol=2e-6),
}

PROVIDERS: dict[str, Callable[[ir.Program, StepInputs], RunsProgram]] = {
    "reference": ReferenceProgram,
    "cpu": CpuProgram,
}
"""Ways to run a program; the first is the definition."""

"""Program: a decoder lowered to a flat list of ops over named float32 buffers. models/lowering.py writes it once;
the numpy reference (ops/reference.py) and the CPU kernels (ops/cpu.py) run it.

A buffer has one row for each token of the step ("tokens") or for each logit row ("logits"). Weights are named
here and live in `matrices` (ops/matrix.py) and `vectors` (float32). What an op does is defined by its reference.
Ops are structs: a dataclass takes a millisecond or two to define, and a starting server waits for every one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.core.kv_layout import KVLayout
from headrace.ops.matrix import Matrix


class Buffer(msgspec.Struct, frozen=True):
    """float32 [rows, width]."""

    name: str
    width: int
    rows: Literal["tokens", "logits"] = "tokens"


class Embed(msgspec.Struct, frozen=True):
    """output[r] = matrix[token of r] * scale."""

    output: str
    matrix: str
    scale: float = 1.0


class RmsNorm(msgspec.Struct, frozen=True):
    """output = input / sqrt(mean(input**2) + eps) * weight, over each group of `width` columns (0: the whole row).
    weight: vector of that width. input and output may be the same buffer. columns (begin, end) limits it to a
    slice, the rest is left alone (QK norm inside a QKV row)."""

    input: str
    output: str
    weight: str
    eps: float
    width: int = 0
    columns: tuple[int, int] | None = None


class Linear(msgspec.Struct, frozen=True):
    """output = input @ matrix.T + bias, or output += that * scale if accumulate. Sums over k are partial sums over
    fixed runs of k_segment values (0: all of k), each in order, added in order: the result does not depend on
    rows, tiles, threads or ranks. bias: vector of n, or None."""

    input: str
    output: str
    matrix: str
    bias: str | None = None
    accumulate: bool = False
    scale: float = 1.0
    k_segment: int = 0


class RopeKV(msgspec.Struct, frozen=True):
    """Rotate q and k of a row [q heads | k heads | v heads] in place and store k and v of its position in the KV
    cache. table: vector of float32 [max positions, rotary dim / 2, 2] (cos, sin), or None for no rope. layer is
    the index inside the KV group."""

    qkv: str
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    table: str | None
    rotary_dim: int
    interleaved: bool = False


class Attention(msgspec.Struct, frozen=True):
    """output [heads * v_head_dim] = softmax(scale * q.k) v over the cached keys of the row's own sequence at
    positions max(0, p - window + 1) .. p, as stored in the cache. softcap c: c * tanh(score / c) before softmax.
    Keys are taken in runs of SPLIT positions, each with its own running maximum and sum, merged in order."""

    qkv: str
    output: str
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None


class GatedActivation(msgspec.Struct, frozen=True):
    """output = activation(gate) * up, where input rows are [gate | up], each of output's width."""

    input: str
    output: str
    activation: Literal["silu", "gelu_tanh"]


class Add(msgspec.Struct, frozen=True):
    """output += input * scale."""

    input: str
    output: str
    scale: float = 1.0


class RouteExperts(msgspec.Struct, frozen=True):
    """input rows are one logit for each expert; output rows are [indices | weights] of the `taken` experts with the
    largest, in falling order, the lower index first among equals. Weights are the softmax over all experts, divided
    by their own sum if normalize. Indices are whole numbers in float32."""

    input: str
    output: str
    taken: int
    normalize: bool


class ExpertLinear(msgspec.Struct, frozen=True):
    """Columns j * n onward of output (from `column` on) = x @ (matrix of the j-th expert that `routes` gives the
    row).T, for each j below taken. matrix has the rows of all experts, n = rows / experts each. x is the input row if
    shared_input, else the row's j-th run of the matrix's k columns. Sums over k as in Linear."""

    input: str
    output: str
    routes: str
    matrix: str
    experts: int
    taken: int
    shared_input: bool
    column: int = 0
    k_segment: int = 0


class MixExperts(msgspec.Struct, frozen=True):
    """output += scale * weight j of routes * the j-th run of input, of output's width, for j in order."""

    input: str
    output: str
    routes: str
    taken: int
    scale: float = 1.0


class SelectRows(msgspec.Struct, frozen=True):
    """Logit row j of output is token row logit_rows[j] of input."""

    input: str
    output: str


class Softcap(msgspec.Struct, frozen=True):
    """buffer = cap * tanh(buffer / cap), in place."""

    buffer: str
    cap: float


Op = (
    Embed
    | RmsNorm
    | Linear
    | RopeKV
    | Attention
    | GatedActivation
    | Add
    | RouteExperts
    | ExpertLinear
    | MixExperts
    | SelectRows
    | Softcap
)

SPLIT = 512
"""Key positions in one run of attention; a multiple of every block size."""


class Matrices(Protocol):
    """A dict of matrices, or weights that are loaded as they are taken."""

    def __getitem__(self, name: str, /) -> Matrix: ...

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...

    def values(self) -> Iterable[Matrix]: ...

    def pop(self, name: str, /) -> Matrix: ...

    def clear(self) -> None: ...


@dataclass(slots=True)
class Program:
    """`logits` names the buffer that holds the result, width vocab_size; notes are whole once all are taken.
    `weights` stands for what the matrices hold, `fingerprint` for all that a token depends on."""

    ops: list[Op]
    buffers: dict[str, Buffer]
    matrices: Matrices
    vectors: dict[str, npt.NDArray[np.float32]]
    kv: tuple[KVLayout, ...]
    vocab_size: int
    logits: str = "logits"
    weights: str = ""
    fingerprint: str = ""
    notes: list[str] = field(default_factory=list)

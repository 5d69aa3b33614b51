"""What quantized safetensors checkpoints hold in common: integers or small floats with scales, per group of inputs or
per output, and how that becomes a Matrix: as stored where a scheme of the kernels holds it exactly, else re-packed to
the nearest (q8 with a scale per 32). How each method lays its tensors out is packed_layouts.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.models.formats.quantize import GROUP, to_q8
from headrace.ops.matrix import Matrix

Float = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Integers:
    """w = scale * (q - zero). q [n, k]: uint8 in 0..15, or int8; scale float32 [n, groups]; zero float32 likewise, or
    None for none. name: what the file calls it."""

    name: str
    q: npt.NDArray[np.uint8] | npt.NDArray[np.int8]
    scale: Float
    zero: Float | None = None

    def matrix(self) -> Matrix:
        n, k = self.q.shape
        group = k // self.scale.shape[1]
        if group % GROUP == 0 and self.q.dtype == np.uint8:
            zero = np.zeros_like(self.scale) if self.zero is None else self.zero
            return Matrix("q4", n, k, _nibbles(self.q), group, self.scale, -(self.scale * zero))
        if group % GROUP == 0 and self.zero is None:
            return Matrix("q8", n, k, self.q, group, self.scale)
        return to_q8(n, k, self._rows, self.name)

    def floats(self) -> Float:
        return self._rows(slice(None))

    def _rows(self, rows: slice) -> Float:
        q, scale = self.q[rows], self.scale[rows]
        values = q.reshape(len(q), scale.shape[1], -1).astype(np.float32)
        if self.zero is not None:
            values -= self.zero[rows][:, :, None]
        return (values * scale[:, :, None]).reshape(q.shape)


@dataclass(frozen=True, slots=True)
class SmallFloats:
    """w = table[code] * scale. codes uint8 [n, k]; scale float32 [n or fewer, k or fewer], each for a block of equal
    height and width (the last ones may be cut short): `block` is (rows, columns)."""

    name: str
    codes: npt.NDArray[np.uint8]
    table: Float
    scale: Float
    block: tuple[int, int]

    def matrix(self) -> Matrix:
        n, k = self.codes.shape
        return to_q8(n, k, self._rows, self.name)

    def floats(self) -> Float:
        return self._rows(slice(None))

    def _rows(self, rows: slice) -> Float:
        n, k = self.codes.shape
        height, width = self.block
        scale = self.scale[np.arange(n)[rows] // height]
        return self.table[self.codes[rows]] * np.repeat(scale, width, axis=1)[:, :k]


QuantizedWeight = Integers | SmallFloats


def unpack(words: npt.NDArray[np.uint32], bits: int, order: Callable[[int], int] = int) -> npt.NDArray[np.uint8]:
    """uint32 [rows, words] to uint8 [rows, words * 32 / bits]: field i of a word is value order(i) of its run."""
    count = 32 // bits
    values = np.empty((*words.shape, count), np.uint8)
    for field in range(count):
        values[:, :, order(field)] = words >> np.uint32(field * bits) & np.uint32((1 << bits) - 1)
    return values.reshape(len(words), -1)


def _nibbles(q: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """uint8 [n, k] of 0..15 to [n, k/32, 16] (ops/matrix.py)."""
    runs = q.astype(np.uint8, copy=False).reshape(len(q), -1, 2, 16)
    return runs[:, :, 0] | runs[:, :, 1] << np.uint8(4)

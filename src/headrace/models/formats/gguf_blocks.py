"""What the blocks of GGUF's stored types hold: integers with a scale, some with a minimum, per group of 16, 32 or 256
weights. How that becomes a Matrix is gguf_matrix.py. Layouts: ggml-common.h of llama.cpp.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Float = npt.NDArray[np.float32]

_SUPER = 256  # weights in a block of the K types


@dataclass(frozen=True, slots=True)
class Groups:
    """w = scale * q + minimum. q int8 [n, k]; scale and minimum float32 [n, k / group], minimum None for none."""

    q: npt.NDArray[np.int8]
    group: int
    scale: Float
    minimum: Float | None = None

    def dequantize(self) -> Float:
        """float32 [n, k], by the operations of the original: one product and one sum each."""
        n, k = self.q.shape
        values = self.q.reshape(n, -1, self.group) * self.scale[:, :, None]
        if self.minimum is not None:
            values += self.minimum[:, :, None]
        return values.reshape(n, k)


def halves(blocks: Bytes, offset: int) -> Float:
    """float32 [n, blocks] of the float16 at `offset` of every block."""
    return blocks[:, :, offset : offset + 2].view("<f2")[:, :, 0].astype(np.float32)


def integers(blocks: Bytes, offset: int, size: int) -> Bytes:
    """uint8 [n, blocks, size] of the bytes from `offset` on, copied a block at a time, not a byte."""
    pieces = np.ascontiguousarray(blocks[:, :, offset : offset + size].view(f"V{size}"))
    return pieces.view(np.uint8).reshape(*blocks.shape[:2], size)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, blocks, 16] to [n, blocks, 32]: low nibbles, then high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=2)


def _bits(packed: Bytes, shifts: tuple[int, ...], mask: int) -> Bytes:
    """[..., bytes] to [..., shifts, bytes]: each byte's field at every shift."""
    return (packed[..., None, :] >> np.array(shifts, np.uint8)[:, None]) & np.uint8(mask)


def _fifth_bits(blocks: Bytes, offset: int) -> Bytes:
    """uint8 [n, blocks, 32], 16 where the bit of the 32-bit word at `offset` is set."""
    return np.unpackbits(blocks[:, :, offset : offset + 4], axis=2, bitorder="little") << np.uint8(4)


def _signed(q: Bytes, offset: int = 0) -> npt.NDArray[np.int8]:
    """int8 [n, k] of uint8 [n, ...], less an offset."""
    signed = q.view(np.int8)
    return (signed - np.int8(offset) if offset else signed).reshape(len(q), -1)


def _q4_0(blocks: Bytes) -> Groups:
    return Groups(_signed(_nibbles(blocks[:, :, 2:]), 8), 32, halves(blocks, 0))


def _q4_1(blocks: Bytes) -> Groups:
    return Groups(_signed(_nibbles(blocks[:, :, 4:])), 32, halves(blocks, 0), halves(blocks, 2))


def _q5_0(blocks: Bytes) -> Groups:
    q = _nibbles(blocks[:, :, 6:]) | _fifth_bits(blocks, 2)
    return Groups(_signed(q, 16), 32, halves(blocks, 0))


def _q5_1(blocks: Bytes) -> Groups:
    q = _nibbles(blocks[:, :, 8:]) | _fifth_bits(blocks, 4)
    return Groups(_signed(q), 32, halves(blocks, 0), halves(blocks, 2))


def _q8_0(blocks: Bytes) -> Groups:
    return Groups(_signed(integers(blocks, 2, 32)), 32, halves(blocks, 0))


def k_scales(blocks: Bytes, offset: int) -> tuple[Float, Float]:
    """Scale and minimum, float32 [n, k/32], of Q4_K and Q5_K: 6 bits each in the 12 bytes at `offset`, times the
    halves that a block starts with."""
    n = len(blocks)
    d, m, both = (blocks[:, :, offset + 4 * i : offset + 4 * i + 4] for i in range(3))
    scale = np.concatenate([d & 63, (both & 15) | (d >> 2 & 48)], axis=2)
    minimum = np.concatenate([m & 63, (both >> 4) | (m >> 2 & 48)], axis=2)
    return (
        (halves(blocks, 0)[:, :, None] * scale).reshape(n, -1),
        -(halves(blocks, 2)[:, :, None] * minimum).reshape(n, -1),
    )


def _q2_k(blocks: Bytes) -> Groups:
    n = len(blocks)
    scale, minimum = blocks[:, :, :16] & 15, blocks[:, :, :16] >> 4
    q = _bits(blocks[:, :, 16:80].reshape(n, -1, 2, 32), (0, 2, 4, 6), 3)
    return Groups(
        _signed(q),
        16,
        (halves(blocks, 80)[:, :, None] * scale).reshape(n, -1),
        -(halves(blocks, 82)[:, :, None] * minimum).reshape(n, -1),
    )


def _q3_k(blocks: Bytes) -> Groups:
    """A group's scale times its integers is -124..128, so all 256 weights have one scale: that of the block, negated
    as the products are, which then fit int8."""
    n = len(blocks)
    low = _bits(blocks[:, :, 32:96].reshape(n, -1, 2, 32), (0, 2, 4, 6), 3)
    high = _bits(blocks[:, :, :32], tuple(range(8)), 1).reshape(low.shape)
    q = (low.view(np.int8) + (high << 2).view(np.int8) - np.int8(4)).reshape(n, -1, 16, 16)
    scale_low = _bits(blocks[:, :, 96:104], (0, 4), 15).reshape(n, -1, 16)
    scale_high = _bits(blocks[:, :, 104:108], (0, 2, 4, 6), 3).reshape(n, -1, 16)
    scale = np.int8(32) - (scale_low | scale_high << np.uint8(4)).view(np.int8)
    return Groups((q * scale[:, :, :, None]).reshape(n, -1), _SUPER, -halves(blocks, 108))


def _q4_k(blocks: Bytes) -> Groups:
    q = _bits(blocks[:, :, 16:].reshape(len(blocks), -1, 4, 32), (0, 4), 15)
    return Groups(_signed(q), 32, *k_scales(blocks, 4))


def _q5_k(blocks: Bytes) -> Groups:
    n = len(blocks)
    low = _bits(blocks[:, :, 48:].reshape(n, -1, 4, 32), (0, 4), 15)
    high = _bits(blocks[:, :, 16:48], tuple(range(8)), 1).reshape(low.shape)
    return Groups(_signed(low | high << np.uint8(4)), 32, *k_scales(blocks, 4))


def _q6_k(blocks: Bytes) -> Groups:
    n = len(blocks)
    low = _bits(blocks[:, :, :128].reshape(n, -1, 2, 64), (0, 4), 15).reshape(n, -1, 2, 4, 32)
    high = _bits(blocks[:, :, 128:192].reshape(n, -1, 2, 32), (0, 2, 4, 6), 3)
    scale = halves(blocks, 208)[:, :, None] * blocks[:, :, 192:208].view(np.int8)
    return Groups(_signed(low | high << np.uint8(4), 32), 16, scale.reshape(n, -1))


_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _iq4_nl(blocks: Bytes) -> Groups:
    return Groups(_IQ4_VALUES[_nibbles(blocks[:, :, 2:])].reshape(len(blocks), -1), 32, halves(blocks, 0))


def _iq4_xs(blocks: Bytes) -> Groups:
    n = len(blocks)
    low = (blocks[:, :, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(n, -1, 8)
    high = (blocks[:, :, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(n, -1, 8)
    scale = halves(blocks, 0)[:, :, None] * ((low | high << np.uint8(4)).view(np.int8) - np.int8(32))
    q = _IQ4_VALUES[_nibbles(blocks[:, :, 8:].reshape(n, -1, 16))]
    return Groups(q.reshape(n, -1), 32, scale.reshape(n, -1))


READERS: dict[str, Callable[[Bytes], Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q8_0": _q8_0,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
"""By the name of a type: blocks, uint8 [n, k / values, bytes], as integers and scales. Floats have none."""

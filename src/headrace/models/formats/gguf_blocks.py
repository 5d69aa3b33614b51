"""GGUF's stored types and how each maps to a Matrix: quantized blocks keep their integers and scales, by strided
copies; nothing is requantized. Layouts: ggml-common.h of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.ops.matrix import Matrix

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlockType:
    """`values` weights, consecutive along k, are stored in `bytes` bytes."""

    name: str
    values: int
    bytes: int


_F32 = BlockType("F32", 1, 4)
_F16 = BlockType("F16", 1, 2)
_Q4_0 = BlockType("Q4_0", 32, 18)
_Q4_1 = BlockType("Q4_1", 32, 20)
_Q8_0 = BlockType("Q8_0", 32, 34)
_BF16 = BlockType("BF16", 1, 2)

TYPES: dict[int, BlockType] = {0: _F32, 1: _F16, 2: _Q4_0, 3: _Q4_1, 8: _Q8_0, 30: _BF16}

UNSUPPORTED: dict[int, str] = {
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


def to_matrix(block: BlockType, raw: Bytes, n: int, k: int) -> Matrix:
    """Matrix of n rows of k weights stored as `block` in `raw`. F32 stays a view of `raw`, as does BF16."""
    if block is _F32:
        return Matrix("f32", n, k, raw.view("<f4").reshape(n, k))
    if block is _F16:
        return Matrix("f32", n, k, raw.view("<f2").reshape(n, k).astype(np.float32))
    if block is _BF16:
        return Matrix("bf16", n, k, raw.view("<u2").reshape(n, k))
    blocks = raw.reshape(n, k // block.values, block.bytes)
    scale = _halves(blocks, 0)
    if block is _Q8_0:
        data = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(n, k)
        return Matrix("q8", n, k, data, 32, scale)
    if block is _Q4_0:
        return Matrix("q4", n, k, np.ascontiguousarray(blocks[:, :, 2:]), 32, scale, scale * np.float32(-8))
    return Matrix("q4", n, k, np.ascontiguousarray(blocks[:, :, 4:]), 32, scale, _halves(blocks, 2))


def _halves(blocks: Bytes, offset: int) -> npt.NDArray[np.float32]:
    """float32 [n, blocks] of the float16 at `offset` of every block."""
    return np.ascontiguousarray(blocks[:, :, offset : offset + 2]).view("<f2")[:, :, 0].astype(np.float32)

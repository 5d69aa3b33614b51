"""A GGUF tensor as a Matrix: as stored wherever a scheme of the kernels holds the type exactly, re-packed to the
nearest one (q8 with a scale per 32) where none does: Q5_1, Q2_K, Q5_K and Q6_K, whose integers have a minimum or a
scale for every 16.
"""

import numpy as np

from headrace.models.formats import gguf_types
from headrace.models.formats.gguf_blocks import READERS, Bytes, Float, halves, integers, k_scales
from headrace.models.formats.gguf_types import BlockType
from headrace.models.formats.quantize import GROUP, to_q8
from headrace.models.formats.weight_source import Form
from headrace.ops.matrix import Matrix

_UNKNOWN_SCALES = np.errstate(all="ignore")
"""Scales in a stranger's file may be infinite or not a number; so are the weights then, and what they compute."""


@_UNKNOWN_SCALES
def to_matrix(block: BlockType, raw: Bytes, n: int, k: int) -> Matrix:
    """Matrix of n rows of k weights stored as `block` in `raw`. F32 stays a view of `raw`, as does BF16."""
    if block == gguf_types.F32:
        return Matrix("f32", n, k, raw.view("<f4").reshape(n, k))
    if block == gguf_types.F16:
        return Matrix("f32", n, k, raw.view("<f2").reshape(n, k).astype(np.float32))
    if block == gguf_types.BF16:
        return Matrix("bf16", n, k, raw.view("<u2").reshape(n, k))
    read = READERS[block.name]
    blocks = _blocks(block, raw, n, k)
    if block == gguf_types.Q4_0:
        scale = halves(blocks, 0)
        return Matrix("q4", n, k, integers(blocks, 2, 16), 32, scale, scale * np.float32(-8))
    if block == gguf_types.Q4_1:
        return Matrix("q4", n, k, integers(blocks, 4, 16), 32, halves(blocks, 0), halves(blocks, 2))
    if block == gguf_types.Q4_K:
        return Matrix("q4", n, k, _q4_k_runs(blocks), 32, *k_scales(blocks, 4))
    if block.name in _AS_Q8:
        groups = read(blocks)
        return Matrix("q8", n, k, groups.q, groups.group, groups.scale)
    return to_q8(n, k, lambda rows: read(blocks[rows]).dequantize(), block.name)


def form(block: BlockType) -> Form:
    """What to_matrix() makes of a type."""
    if block.name not in READERS:
        return Form(block.name, "bf16" if block == gguf_types.BF16 else "f32")
    if block in (gguf_types.Q4_0, gguf_types.Q4_1, gguf_types.Q4_K):
        return Form(block.name, "q4", GROUP)
    if block.name in _AS_Q8:
        return Form(block.name, "q8", block.values if block.name == "Q3_K" else GROUP)
    return Form(block.name, "q8", GROUP, block.name)


@_UNKNOWN_SCALES
def to_floats(block: BlockType, raw: Bytes, n: int, k: int) -> Float:
    """float32 [n, k]: exactly the stored values."""
    if block.name not in READERS:
        return to_matrix(block, raw, n, k).dequantize()
    return READERS[block.name](_blocks(block, raw, n, k)).dequantize()


_AS_Q8 = ("Q8_0", "Q5_0", "Q3_K", "IQ4_NL", "IQ4_XS")
"""Types that int8 and a scale per 32 or 256 hold exactly."""


def _blocks(block: BlockType, raw: Bytes, n: int, k: int) -> Bytes:
    return raw.reshape(n, k // block.values, block.bytes)


def _q4_k_runs(blocks: Bytes) -> Bytes:
    """uint8 [n, k/32, 16]: 32 bytes hold a run in their low nibbles and the next in their high ones; here each run's
    first half goes into low nibbles, its second into high ones."""
    n = len(blocks)
    pairs = blocks[:, :, 16:].reshape(n, -1, 2, 16)
    first, second = pairs[:, :, 0], pairs[:, :, 1]
    runs = np.stack([(first & 15) | second << np.uint8(4), first >> 4 | (second & 240)], axis=2)
    return runs.reshape(n, -1, 16)

"""GGUF's stored types: their numbers, names and sizes. What is in a block is told in gguf_blocks.py."""

from typing import NamedTuple

_SUPER = 256  # weights in a block of the K types


class BlockType(NamedTuple):
    """`values` weights, consecutive along k, are stored in `bytes` bytes."""

    name: str
    values: int
    bytes: int


F32 = BlockType("F32", 1, 4)
F16 = BlockType("F16", 1, 2)
BF16 = BlockType("BF16", 1, 2)
Q4_0 = BlockType("Q4_0", 32, 18)
Q4_1 = BlockType("Q4_1", 32, 20)
Q4_K = BlockType("Q4_K", _SUPER, 144)

TYPES: dict[int, BlockType] = {
    0: F32,
    1: F16,
    30: BF16,
    8: BlockType("Q8_0", 32, 34),
    2: Q4_0,
    3: Q4_1,
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    10: BlockType("Q2_K", _SUPER, 84),
    11: BlockType("Q3_K", _SUPER, 110),
    12: Q4_K,
    13: BlockType("Q5_K", _SUPER, 176),
    14: BlockType("Q6_K", _SUPER, 210),
    20: BlockType("IQ4_NL", 32, 18),
    23: BlockType("IQ4_XS", _SUPER, 136),
}

UNSUPPORTED: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
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

"""How much work a step is, counted by hand for a small program."""

from __future__ import annotations

import numpy as np

from headrace.core.kv_layout import KVLayout
from headrace.ops.matrix import Matrix
from headrace.ops.program import Attention, Buffer, Linear, Program
from headrace.ops.work import Work, attention_works, linear_works

LAYOUT = KVLayout(1, 2, 32, 32, 16, "bf16")  # 2 heads of 32: 256 bytes a token


def attention(window: int | None = None) -> Attention:
    return Attention("qkv", "out", 0, 0, 4, 2, 32, 32, 1.0, window)


def test_linears_count_the_rows_of_their_output():
    up = Matrix("f32", 64, 32, np.zeros((64, 32), np.float32))
    head = Matrix("q8", 96, 32, np.zeros((96, 32), np.int8), 32, np.ones((96, 1), np.float32))
    program = Program(
        ops=[Linear("x", "y", "layer0.up"), Linear("y", "logits", "head")],
        buffers={"y": Buffer("y", 64), "logits": Buffer("logits", 96, "logits")},
        matrices={"layer0.up": up, "head": head},
        vectors={},
        kv=(),
        vocab_size=96,
    )
    assert linear_works(program, rows=5, logits=2) == [
        Work("up f32", 2 * 5 * 64 * 32, 64 * 32 * 4),
        Work("head q8", 2 * 2 * 96 * 32, 96 * 32 + 96 * 2),
    ]
    assert linear_works(program, rows=5, logits=0)[1] == Work("head q8", 0, 0)


def test_attention_counts_every_key_that_a_row_reaches_and_reads_each_once():
    (work,) = attention_works([attention()], {0: LAYOUT}, [(3, 2), (0, 1)])
    assert work == Work("attention", 2 * 4 * (32 + 32) * (4 + 5 + 1), 256 * (5 + 1))


def test_attention_with_a_window_reaches_no_further():
    (work,) = attention_works([attention(window=2)], {0: LAYOUT}, [(3, 2)])
    assert work == Work("attention", 2 * 4 * (32 + 32) * (2 + 2), 256 * 3)

"""Keys and values come back from a block as they were stored, within what their type can hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headrace.core.kv_layout import KVLayout
from headrace.ops.kv_codec import KVCodec, narrow_bf16, quantize_int8, widen_bf16

RELATIVE_ERROR = {"fp32": 0.0, "bf16": 2.0**-8, "int8": 0.0}
FLOATS = st.floats(-1e4, 1e4, width=32)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_reads_what_was_written_and_nothing_else_moves(dtype, block_size):
    layout = KVLayout(3, 2, 24, 16, block_size, dtype)
    cache = np.zeros(4 * layout.block_bytes, np.uint8)
    rng = np.random.default_rng(0)
    blocks = np.repeat(np.array([2, 0], np.int32), block_size)
    slots = np.tile(np.arange(block_size, dtype=np.int32), 2)
    k = rng.standard_normal((len(blocks), 2, 24), np.float32)
    v = rng.standard_normal((len(blocks), 2, 16), np.float32)
    KVCodec(layout, cache, 1).write(blocks, slots, k, v)
    read_k, read_v = KVCodec(layout, cache, 1).read(np.array([2, 0], np.int32))
    step = {"int8": np.abs(k).max() / 254}.get(dtype, 0.0)
    np.testing.assert_allclose(read_k.swapaxes(0, 1), k, rtol=RELATIVE_ERROR[dtype], atol=step * 1.001)
    np.testing.assert_allclose(
        read_v.swapaxes(0, 1), v, rtol=RELATIVE_ERROR[dtype], atol=step and np.abs(v).max() / 254 * 1.001
    )
    for layer in (0, 2):
        for part in KVCodec(layout, cache, layer).read(np.arange(4, dtype=np.int32)):
            assert not part.any()
    assert not cache.reshape(4, -1)[[1, 3]].any()


@given(arrays(np.float32, 8, elements=st.floats(width=32)))
def test_bf16_rounds_to_nearest_even(x):
    import torch

    expected = torch.from_numpy(x).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(widen_bf16(narrow_bf16(x)), expected)


@given(arrays(np.float32, (3, 8), elements=FLOATS))
def test_int8_is_within_half_a_step(x):
    q, scale = quantize_int8(x)
    assert np.all(np.abs(q.astype(np.float32) * scale - x) <= scale * np.float32(0.501) + np.float32(1e-30))

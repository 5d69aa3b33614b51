import numpy as np
import pytest

from headrace.models.formats.join import join
from headrace.ops.matrix import Matrix

RANDOM = np.random.default_rng(0)


def q8(n: int, group: int = 32) -> Matrix:
    data = RANDOM.integers(-127, 128, (n, 256)).astype(np.int8)
    return Matrix("q8", n, 256, data, group, RANDOM.uniform(0.5, 1, (n, 256 // group)).astype(np.float32))


def q4(n: int) -> Matrix:
    data = RANDOM.integers(0, 256, (n, 8, 16)).astype(np.uint8)
    scale, minimum = (RANDOM.uniform(-1, 1, (n, 8)).astype(np.float32) for _ in range(2))
    return Matrix("q4", n, 256, data, 32, scale, minimum)


def f32(n: int) -> Matrix:
    return Matrix("f32", n, 256, RANDOM.normal(size=(n, 256)).astype(np.float32))


def bf16(n: int) -> Matrix:
    return Matrix("bf16", n, 256, RANDOM.integers(0, 2**15 - 2**8, (n, 256)).astype(np.uint16))


def values(parts: list[Matrix]) -> np.ndarray:
    return np.concatenate([part.dequantize() for part in parts])


@pytest.mark.parametrize("make", [q8, q4, f32, bf16])
def test_parts_of_one_kind_stay_what_they_are(make) -> None:
    parts = [make(3), make(5)]
    joined = join(parts)
    assert (joined.scheme, joined.group, joined.n, joined.stored_as) == (parts[0].scheme, parts[0].group, 8, "")
    np.testing.assert_array_equal(joined.dequantize(), values(parts))


def test_eight_bits_with_scales_of_different_runs_join_exactly() -> None:
    parts = [q8(3), q8(2, group=256)]
    joined = join(parts)
    assert (joined.scheme, joined.group) == ("q8", 32)
    np.testing.assert_array_equal(joined.dequantize(), values(parts))


def test_four_bits_beside_eight_become_eight() -> None:
    parts = [q4(3), q8(2)]
    joined, exact = join(parts), values(parts)
    assert (joined.scheme, joined.group, joined.stored_as) == ("q8", 32, "q4 and q8")
    step = np.abs(exact).reshape(5, 8, 32).max(axis=2).repeat(32, axis=1) / 127
    assert np.all(np.abs(joined.dequantize() - exact) <= 0.57 * step)


def test_floats_beside_anything_become_float32() -> None:
    for parts in ([f32(2), bf16(3)], [q4(2), f32(1)]):
        joined = join(parts)
        assert joined.scheme == "f32" and joined.stored_as
        np.testing.assert_array_equal(joined.dequantize(), values(parts))

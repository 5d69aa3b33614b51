"""Linear kernels of every instruction set and scheme: against float64, and to the bit against themselves over
rows and tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ops.kv_codec import narrow_bf16, widen_bf16
from headrace.ops.matrix import ACTIVATION_GROUP, Matrix, Scheme

_kernels = pytest.importorskip("headrace._kernels", reason="the kernels are not built: make kernels")

ISAS: list[str] = _kernels.available_isas()
SCHEMES: list[Scheme] = ["f32", "bf16", "q8", "q4"]
POOL = _kernels.ThreadPool(2)
Float = npt.NDArray[np.float32]


def make_matrix(scheme: Scheme, n: int, k: int, group: int = 32, *, seed: int = 0, halves: bool = True) -> Matrix:
    """Random weights; with `halves` scale and minimum are values that IEEE half holds."""
    random = np.random.default_rng(seed)
    weights = random.normal(size=(n, k)).astype(np.float32)
    if scheme == "f32":
        return Matrix("f32", n, k, weights)
    if scheme == "bf16":
        return Matrix("bf16", n, k, (weights.view(np.uint32) >> 16).astype(np.uint16))
    scale = random.uniform(0.01, 0.1, (n, k // group)).astype(np.float32)
    minimum = random.uniform(-0.5, 0.1, (n, k // group)).astype(np.float32)
    if halves:
        scale, minimum = (a.astype(np.float16).astype(np.float32) for a in (scale, minimum))
    if scheme == "q8":
        return Matrix("q8", n, k, random.integers(-128, 128, (n, k), np.int8), group, scale)
    data = random.integers(0, 256, (n, k // 32, 16), np.uint8)
    return Matrix("q4", n, k, data, group, scale, minimum)


def pack(matrix: Matrix) -> Any:
    return _kernels.WeightStore().pack(
        POOL, matrix.scheme, matrix.n, matrix.k, matrix.group, matrix.data, matrix.scale, matrix.minimum
    )


def quantize(x: Float) -> Float:
    """What int8 activations with one scale per run of 32 stand for."""
    runs = x.reshape(len(x), -1, ACTIVATION_GROUP)
    largest = np.abs(runs).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(largest > 0, np.rint(runs * (np.float32(127) / largest)), 0)
    return (q * (largest / np.float32(127))).reshape(x.shape).astype(np.float32)


def linear(isa: str, x: Float, matrix: Matrix, packed: Any = None, **arguments: Any) -> Float:
    y = arguments.pop("y", None)
    y = np.zeros((len(x), matrix.n), np.float32) if y is None else y
    _kernels.linear(_kernels.Kernels(isa), x, pack(matrix) if packed is None else packed, y, **arguments)
    return y


def activations(rows: int, k: int, seed: int = 1) -> Float:
    return np.random.default_rng(seed).normal(size=(rows, k)).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 23), st.integers(24, 300)),
    n=st.integers(1, 70),
    runs=st.integers(1, 9),
    odd=st.integers(0, 31),
    halves=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_linear_equals_float64(
    isa: str, scheme: Scheme, rows: int, n: int, runs: int, odd: int, halves: bool, seed: int
) -> None:
    quantized = scheme in ("q8", "q4")
    k = 32 * runs + (0 if quantized else odd)
    matrix = make_matrix(scheme, n, k, seed=seed, halves=halves)
    x = activations(rows, k, seed)
    seen = quantize(x) if quantized else x
    if (scheme, isa) == ("bf16", "avx512bf16"):
        seen = widen_bf16(narrow_bf16(x))
    weights = matrix.dequantize().astype(np.float64)
    exact = seen.astype(np.float64) @ weights.T
    bound = 1e-6 * (np.abs(seen).astype(np.float64) @ np.abs(weights).T) + 1e-6
    if quantized:  # a value that lies between two int8 may be rounded to the other one
        bound += 0.02 * np.abs(x).max() / 127 * np.abs(weights).max()
    y = linear(isa, x, matrix)
    assert np.all(np.abs(y - exact) <= bound)
    begin = seed % rows
    assert np.array_equal(linear(isa, x[begin : begin + 1 + seed % 9], matrix), y[begin : begin + 1 + seed % 9])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", ["q8", "q4"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_groups_share_a_scale(isa: str, scheme: Scheme, group: int) -> None:
    matrix = make_matrix(scheme, 40, 384, group)
    x = activations(5, 384)
    exact = quantize(x).astype(np.float64) @ matrix.dequantize().astype(np.float64).T
    np.testing.assert_allclose(linear(isa, x, matrix), exact, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_row_does_not_depend_on_other_rows_or_tiles(isa: str, scheme: Scheme) -> None:
    n, k = 16 * 5 + 3, 4608  # so long that rows are cut into blocks
    matrix = make_matrix(scheme, n, k)
    packed = pack(matrix)
    x = activations(70, k)
    bias = activations(1, n)[0]
    whole = linear(isa, x, matrix, packed, bias=bias, k_segment=1536)
    for begin, end in ((0, 1), (3, 5), (7, 10), (11, 17), (20, 40), (0, 69)):
        rows = np.ascontiguousarray(x[begin:end])
        assert np.array_equal(linear(isa, rows, matrix, packed, bias=bias, k_segment=1536), whole[begin:end])
    pieces = np.zeros_like(whole)
    for tile_begin, tile_end in ((0, 1), (1, 4), (4, 6)):
        linear(isa, x, matrix, packed, y=pieces, bias=bias, k_segment=1536, tile_begin=tile_begin, tile_end=tile_end)
    assert np.array_equal(pieces, whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bias_accumulate_and_scale(isa: str, scheme: Scheme) -> None:
    matrix = make_matrix(scheme, 37, 96)
    x, bias, before = activations(7, 96), activations(1, 37, 2)[0], activations(7, 37, 3)
    plain = linear(isa, x, matrix)
    assert np.array_equal(linear(isa, x, matrix, bias=bias), plain + bias)
    assert np.array_equal(linear(isa, x, matrix, y=before.copy(), bias=bias), plain + bias)
    added = linear(isa, x, matrix, y=before.copy(), bias=bias, accumulate=True, scale=0.5)
    np.testing.assert_allclose(added, before + 0.5 * (plain + bias), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_segments_are_summed_on_their_own_and_added_in_order(isa: str, scheme: Scheme) -> None:
    matrix = make_matrix(scheme, 16, 192)
    x = activations(3, 192)
    parts = []
    for begin in (0, 64, 128):
        part = np.zeros_like(x)
        part[:, begin : begin + 64] = x[:, begin : begin + 64]
        parts.append(linear(isa, part, matrix))
    assert np.array_equal(linear(isa, x, matrix, k_segment=64), (parts[0] + parts[1]) + parts[2])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("scheme", "extreme"), [("q8", -128), ("q8", 127), ("q4", 15)])
def test_extreme_weights_and_activations_do_not_saturate(isa: str, scheme: Scheme, extreme: int) -> None:
    k = 64
    ones = np.ones((16, k // 32), np.float32)
    if scheme == "q8":
        matrix = Matrix("q8", 16, k, np.full((16, k), extreme, np.int8), 32, ones)
    else:
        matrix = Matrix("q4", 16, k, np.full((16, k // 32, 16), 0xFF, np.uint8), 32, ones, 0 * ones)
    for value in (127.0, -127.0):
        x = np.full((5, k), value, np.float32)
        assert np.all(linear(isa, x, matrix) == extreme * value * k)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", ["q8", "q4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_and_stays_in_its_row(isa: str, scheme: Scheme, bad: float) -> None:
    matrix = make_matrix(scheme, 20, 96)
    x = activations(6, 96)
    clean = linear(isa, x, matrix)
    x[3, 40] = bad
    seen = linear(isa, x, matrix)
    assert np.isnan(seen[3]).all()
    assert np.array_equal(np.delete(seen, 3, 0), np.delete(clean, 3, 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", ["q8", "q4"])
def test_zeros_and_tiny_activations_give_zero(isa: str, scheme: Scheme) -> None:
    matrix = make_matrix(scheme, 20, 64)
    assert not linear(isa, np.zeros((2, 64), np.float32), matrix).any()
    assert not linear(isa, np.full((2, 64), 1e-40, np.float32), matrix).any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("halves", [True, False])
def test_an_embedding_row_is_exactly_the_matrix_row(isa: str, scheme: Scheme, halves: bool) -> None:
    matrix = make_matrix(scheme, 35, 96, halves=halves)
    packed, kernels = pack(matrix), _kernels.Kernels(isa)
    expected = matrix.dequantize()
    row = np.zeros(96, np.float32)
    for index in (0, 15, 16, 34):
        _kernels.embed_row(kernels, packed, index, 1.0, row)
        assert np.array_equal(row, expected[index])
    _kernels.embed_row(kernels, packed, 34, 0.125, row)
    assert np.array_equal(row, expected[34] * np.float32(0.125))


def test_half_scales_are_used_only_where_they_are_exact() -> None:
    for halves in (True, False):
        assert pack(make_matrix("q4", 33, 64, halves=halves)).half_scales is halves
    edge = make_matrix("q4", 1, 32)
    exact = [65504.0, 2.0**-24, 3 * 2.0**-24, -1.5, 0.0, -0.0]
    inexact = [65536.0, 2.0**-25, 1 + 2.0**-11, 2.0**-14 + 2.0**-25, np.inf, np.nan]
    for value in exact + inexact:
        matrix = Matrix("q4", 1, 32, edge.data, 32, edge.scale, np.full((1, 1), value, np.float32))
        packed = pack(matrix)
        assert packed.half_scales is (value in exact), value
        if value in exact:
            for isa in ISAS:
                row = np.zeros(32, np.float32)
                _kernels.embed_row(_kernels.Kernels(isa), packed, 0, 1.0, row)
                assert np.array_equal(row, matrix.dequantize()[0])


def test_packed_matrices_outlive_their_store() -> None:
    matrix = make_matrix("q4", 4096, 512)
    packed = [pack(matrix) for _ in range(3)]
    x = activations(1, 512)
    assert np.array_equal(linear("auto", x, matrix, packed[0]), linear("auto", x, matrix, packed[2]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "q5"}, "scheme must be f32, bf16, q8 or q4, got 'q5'"),
        ({"n": 17}, "data must hold"),
        ({"group": 48}, "group must be"),
        ({"group": 0}, "group must be"),
        ({"scale": None}, "scale belongs"),
        ({"minimum": None}, "minimum belongs"),
        ({"scale": np.ones((16, 1), np.float32)}, "scale and minimum must hold"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    matrix = make_matrix("q4", 16, 64)
    fields = {name: getattr(matrix, name) for name in ("scheme", "n", "k", "group", "data", "scale", "minimum")}
    with pytest.raises(ValueError, match=message):
        _kernels.WeightStore().pack(POOL, **{**fields, **change})

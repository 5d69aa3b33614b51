"""Quantizing floats to the schemes that kernels have (ops/matrix.py), for weights whose stored form none of them holds
exactly, and for those that a user wants smaller than they are stored. Done a few rows at a time, so that a whole matrix
is never in float32.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from headrace.ops.matrix import Matrix

Float = npt.NDArray[np.float32]

GROUP = 32
_VALUES_AT_ONCE = 1 << 18  # of float32: they stay in the cache


@np.errstate(all="ignore")  # infinities of a stranger's file stay so: what such weights compute is not a number
def to_q8(n: int, k: int, rows: Callable[[slice], Float], stored_as: str) -> Matrix:
    """q8 with a scale per 32, nearest to what rows(which) gives as float32 [rows, k]. k is a multiple of 32."""
    data = np.empty((n, k), np.int8)
    scale = np.empty((n, k // GROUP), np.float32)
    for part in _few_rows(n, k):
        values = rows(part).reshape(-1, k // GROUP, GROUP)
        largest = np.maximum(values.max(axis=2), -values.min(axis=2))
        scale[part] = _short(largest / np.float32(127))
        factor = np.where(scale[part] > 0, 1 / scale[part], 0).astype(np.float32)
        values = values * factor[:, :, None]
        np.clip(np.rint(values, out=values), -127, 127, out=values)
        data[part] = values.reshape(-1, k)
    return Matrix("q8", n, k, data, GROUP, scale, stored_as=stored_as)


@np.errstate(all="ignore")
def to_q4(n: int, k: int, rows: Callable[[slice], Float]) -> Matrix:
    """q4 with a scale and a minimum per 32, of what rows(which) gives as in to_q8: in 15 steps from the least to the
    largest weight, then with the scale and minimum that come nearest (in squares) for the integers so found.
    """
    data = np.empty((n, k // GROUP, GROUP // 2), np.uint8)
    scale, minimum = np.empty((2, n, k // GROUP), np.float32)
    for part in _few_rows(n, k):
        values = rows(part).reshape(-1, k // GROUP, GROUP)
        least = values.min(axis=2)
        q = _steps(values, (values.max(axis=2) - least) / np.float32(15), least)
        mean_q, mean = q.mean(axis=2), values.mean(axis=2)
        centred = q - mean_q[:, :, None]
        spread = np.square(centred).sum(axis=2)
        fitted = np.where(spread > 0, (centred * values).sum(axis=2) / spread, 0).astype(np.float32)
        scale[part], minimum[part] = _short(fitted), _short(mean - fitted * mean_q)
        fours: npt.NDArray[np.uint8] = _steps(values, scale[part], minimum[part]).astype(np.uint8)
        data[part] = fours[:, :, : GROUP // 2] | fours[:, :, GROUP // 2 :] << np.uint8(4)
    return Matrix("q4", n, k, data, GROUP, scale, minimum)


def _steps(values: Float, scale: Float, minimum: Float) -> Float:
    """The integer in 0..15 nearest to each value, as float32."""
    factor = np.where(scale > 0, 1 / scale, 0).astype(np.float32)
    steps = (values - minimum[:, :, None]) * factor[:, :, None]
    return np.clip(np.rint(steps, out=steps), 0, 15, out=steps)


def _few_rows(n: int, k: int) -> Iterator[slice]:
    step = max(1, _VALUES_AT_ONCE // k)
    for first in range(0, n, step):
        yield slice(first, min(first + step, n))


def _short(scale: Float) -> Float:
    """The scales rounded to what IEEE half holds, so that packing can keep them in two bytes; as they are where that
    would cost more than half a unit in its last place."""
    rounded = scale.astype(np.float16).astype(np.float32)
    return np.where(np.abs(rounded - scale) <= np.abs(scale) * np.float32(2**-11), rounded, scale)

"""Quantizing floats to the schemes that kernels have (ops/matrix.py), for weights whose stored form none of them holds
exactly. Done a few rows at a time, so that a whole matrix is never in float32.
"""

from __future__ import annotations

from collections.abc import Callable

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
    step = max(1, _VALUES_AT_ONCE // k)
    for first in range(0, n, step):
        part = slice(first, min(first + step, n))
        values = rows(part).reshape(-1, k // GROUP, GROUP)
        largest = np.maximum(values.max(axis=2), -values.min(axis=2))
        scale[part] = _short(largest / np.float32(127))
        factor = np.where(scale[part] > 0, 1 / scale[part], 0).astype(np.float32)
        values = values * factor[:, :, None]
        np.clip(np.rint(values, out=values), -127, 127, out=values)
        data[part] = values.reshape(-1, k)
    return Matrix("q8", n, k, data, GROUP, scale, stored_as=stored_as)


def _short(scale: Float) -> Float:
    """The scales rounded to what IEEE half holds, so that packing can keep them in two bytes; as they are where that
    would cost more than half a unit in its last place."""
    rounded = scale.astype(np.float16).astype(np.float32)
    return np.where(np.abs(rounded - scale) <= scale * np.float32(2**-11), rounded, scale)

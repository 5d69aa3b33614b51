"""The table of cosines and sines that a Rope stands for, computed in float32 as the reference implementations do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError
from headrace.core.model_spec import Rope

FloatArray = npt.NDArray[np.float32]


def rope_table(rope: Rope, positions: int) -> FloatArray:
    """float32 [positions, dim / 2, 2]: (cos, sin). Raises ModelError for a kind of scaling that is not known."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * _frequencies(rope)[None, :]
    return np.stack([np.cos(angles), np.sin(angles)], axis=2)


def _frequencies(rope: Rope) -> FloatArray:
    """float32 [dim / 2]: radians per position."""
    exponent = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    plain: FloatArray = (1.0 / np.float32(rope.theta) ** exponent).astype(np.float32)
    scaling: dict[str, Any] = dict(rope.scaling)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / np.float32(scaling["factor"])
    if rope.kind == "llama3":
        if "frequency_factors" in scaling:
            factors: FloatArray = np.asarray(scaling["frequency_factors"], np.float32)
            return np.divide(plain, factors)
        return _llama3(plain, **scaling)
    raise ModelError(f"rope of kind {rope.kind!r} is not supported; default, linear and llama3 are")


def _llama3(
    plain: FloatArray,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: float,
) -> FloatArray:
    """Long waves are stretched by factor, short ones kept, those between blended (arXiv:2407.21783, section 3.2)."""
    wavelength = 2 * math.pi / plain
    blend = (original_max_position_embeddings / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
    blend = np.clip(blend, 0, 1)
    return np.asarray((1 - blend) * plain / factor + blend * plain, np.float32)

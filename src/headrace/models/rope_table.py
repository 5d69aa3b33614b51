"""The table of cosines and sines that a Rope stands for, computed in float32 as transformers does.

Two kinds depend on the longest sequence, and a key must not be rotated anew when its sequence grows: their
frequencies are those that transformers uses for a sequence of `positions`, the most that can be asked for here. So
sequences shorter than that see, with kinds dynamic and longrope, other frequencies than in transformers, which
changes them as the sequence grows; a smaller max_model_len brings back the short ones.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.model_spec import Rope

FloatArray = npt.NDArray[np.float32]


def rope_table(rope: Rope, positions: int) -> FloatArray:
    """float32 [positions, dim / 2, 2]: (cos, sin), both times the attention factor of yarn and longrope."""
    scaling: dict[str, Any] = dict(rope.scaling)
    angles = np.arange(positions, dtype=np.float32)[:, None] * _frequencies(rope, scaling, positions)[None, :]
    return np.stack([np.cos(angles), np.sin(angles)], axis=2) * np.float32(scaling.get("attention_factor", 1.0))


def depends_on_length(rope: Rope) -> bool:
    """Whether the first rows of the table change with the number of positions."""
    return rope.kind in ("dynamic", "longrope")


def _frequencies(rope: Rope, scaling: dict[str, Any], positions: int) -> FloatArray:
    """float32 [dim / 2]: radians per position."""
    plain = _plain(rope.theta, rope.dim)
    if rope.kind == "linear":
        return plain / np.float32(scaling["factor"])
    if rope.kind == "dynamic":
        return _dynamic(rope, positions, **scaling)
    if rope.kind == "llama3":
        if "frequency_factors" in scaling:
            return np.divide(plain, np.asarray(scaling["frequency_factors"], np.float32))
        return _llama3(plain, **scaling)
    if rope.kind == "yarn":
        return _yarn(plain, rope, scaling)
    if rope.kind == "longrope":
        factors = scaling["long_factor" if positions > scaling["original"] else "short_factor"]
        return np.divide(plain, np.asarray(factors, np.float32))
    return plain


def _plain(theta: float, dim: int) -> FloatArray:
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.asarray(1.0 / np.float32(theta) ** exponent, np.float32)


def _dynamic(rope: Rope, positions: int, factor: float, original: float) -> FloatArray:
    """A larger base for sequences beyond the original context, such that the longest wave spans them."""
    growth = factor * max(positions, original) / original - (factor - 1)
    return _plain(rope.theta * growth ** (rope.dim / (rope.dim - 2)), rope.dim)


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


def _yarn(plain: FloatArray, rope: Rope, scaling: dict[str, Any]) -> FloatArray:
    """Waves that turn more than beta_fast times in the original context are kept, those that turn less than
    beta_slow times stretched by factor, those between blended by their index (arXiv:2309.00071, section 3.2)."""

    def index_of(turns: float) -> float:
        return rope.dim * math.log(scaling["original"] / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = index_of(scaling["beta_fast"]), index_of(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - low) / (high - low if high != low else 0.001)
    stretched = np.clip(ramp, 0, 1)
    return np.asarray(plain / scaling["factor"] * stretched + plain * (1 - stretched), np.float32)

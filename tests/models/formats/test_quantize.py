"""Floats in 8 and 4 bits: how far the values may move, and what must not move at all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.models.formats.quantize import GROUP, to_q4, to_q8


def weights(n: int, groups: int, seed: int, spread: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal((n, groups * GROUP)) * spread + random.normal()).astype(np.float32)


def reach(values: np.ndarray) -> np.ndarray:
    """Largest less least of every group, beside each of its values."""
    groups = values.reshape(len(values), -1, GROUP)
    return np.repeat(groups.max(axis=2) - groups.min(axis=2), GROUP, axis=1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1), st.sampled_from([1e-4, 0.05, 3.0]))
def test_values_stay_within_a_step(n: int, groups: int, seed: int, spread: float) -> None:
    values = weights(n, groups, seed, spread)
    four = to_q4(n, values.shape[1], lambda rows: values[rows])
    # A fitted step may let the ends go, by less than a step; halves round scale and minimum.
    assert np.all(np.abs(four.dequantize() - values) <= reach(values) / 15 + 2e-3 * np.abs(values).max() + 1e-7)
    eight = to_q8(n, values.shape[1], lambda rows: values[rows], "")
    assert np.all(np.abs(eight.dequantize() - values) <= np.abs(values).max() / 254 * 1.2 + 1e-7)


def test_the_fit_beats_steps_from_end_to_end() -> None:
    values = weights(64, 4, 0, 1.0)
    groups = values.reshape(64, -1, GROUP)
    least, step = groups.min(axis=2, keepdims=True), np.ptp(groups, axis=2, keepdims=True) / 15
    plain = np.rint((groups - least) / step) * step + least
    fitted = to_q4(64, values.shape[1], lambda rows: values[rows]).dequantize()
    assert np.square(fitted - values).sum() < 0.97 * np.square(plain - groups).sum()


@pytest.mark.parametrize("value", [0.0, 0.25, -1.5])
def test_constants_are_kept(value: float) -> None:
    values = np.full((3, 64), value, np.float32)
    assert np.array_equal(to_q4(3, 64, lambda rows: values[rows]).dequantize(), values)


def test_few_rows_are_widened_at_once() -> None:
    values = weights(300, 64, 1, 1.0)
    seen = []

    def rows(which: slice) -> np.ndarray:
        seen.append(which.stop - which.start)
        return values[which]

    to_q4(300, values.shape[1], rows)
    assert sum(seen) == 300 and max(seen) * values.shape[1] <= 1 << 18

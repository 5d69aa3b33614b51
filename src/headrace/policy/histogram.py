"""Histogram: how often values fell into which bucket, as Prometheus counts them, in plain numbers that can be sent."""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec


class HistogramCounts(msgspec.Struct, frozen=True):
    """counts[i]: values at most bounds[i] and above the bound before; one more count for those above all. total: their
    sum."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: float = 0.0


class Histogram:
    """bounds in rising order."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> HistogramCounts:
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)

"""What asking a drafter takes that computes its guesses: one step of its own for each token ahead, besides reading what
is new. It is what whole steps took beyond what their rows take, by how many requests were asked for.
"""

from collections import deque
from statistics import median

import numpy as np

_REMEMBERED = 11
_FRESH = 8
"""Measurements after which the medians are taken anew."""
_TRY_AGAIN = 64
"""Times that asking seemed too dear, after which the oldest measurements are forgotten."""


class AskCost:
    """Seconds for each token ahead; 0 before anything is known, so that it is tried."""

    def __init__(self) -> None:
        self._measured: dict[int, deque[float]] = {}
        self._taken: dict[int, float] = {}
        self._fresh = 0
        self._refused = 0

    def observe(self, requests: int, ahead: int, seconds: float) -> None:
        """Asking for so many requests and up to so many tokens each took so long."""
        self._measured.setdefault(requests, deque(maxlen=_REMEMBERED)).append(max(seconds, 0.0) / ahead)
        self._fresh += 1
        if self._fresh >= _FRESH or not self._taken:
            self._draw()

    def refuse(self) -> None:
        """Nobody was asked, because of what it takes."""
        self._refused += 1
        if self._refused >= _TRY_AGAIN:
            # A stall when it was last tried must not keep it from being tried for ever.
            self._refused = 0
            for seen in self._measured.values():
                seen.popleft()
            self._draw()

    def seconds(self, requests: int) -> float:
        """Between its neighbours, or as the nearest."""
        return float(np.interp(requests, list(self._taken), list(self._taken.values()))) if self._taken else 0.0

    def _draw(self) -> None:
        self._fresh = 0
        self._measured = {requests: seen for requests, seen in sorted(self._measured.items()) if seen}
        self._taken = {requests: median(seen) for requests, seen in self._measured.items()}

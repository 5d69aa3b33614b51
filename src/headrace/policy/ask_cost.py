"""What asking a drafter takes that computes its guesses: one step of its own for each token ahead, besides reading what
is new. It is what whole steps took beyond what their rows take, by how many requests were asked for.
"""

from headrace.policy.row_cost import Curve

_FRESH = 8
"""Measurements after which the curve is drawn anew."""
_TRY_AGAIN = 64
"""Times that asking seemed too dear, after which the oldest measurements are forgotten."""


class AskCost:
    """Seconds for each token ahead; 0 before anything is known, so that it is tried."""

    def __init__(self) -> None:
        self._curve = Curve(1)
        self._fresh = 0
        self._refused = 0

    def observe(self, requests: int, ahead: int, seconds: float) -> None:
        """Asking for so many requests and up to so many tokens each took so long."""
        self._curve.add(requests, max(seconds, 0.0) / ahead)
        self._fresh += 1
        if self._fresh >= _FRESH or not self._curve.rows:
            self._draw()

    def refuse(self) -> None:
        """Nobody was asked, because of what it takes."""
        self._refused += 1
        if self._refused >= _TRY_AGAIN:
            # A stall when it was last tried must not keep it from being tried for ever.
            self._refused = 0
            self._curve.forget()
            self._draw()

    def seconds(self, requests: int) -> float:
        return self._curve.at(requests)

    def _draw(self) -> None:
        self._fresh = 0
        self._curve.draw()

"""How often what ends is started again: ends in a row, with nothing brought in between, are counted; each makes the
next start wait longer, and after some it is given up.
"""

MOST_FRUITLESS = 5
"""Ends in a row, with nothing brought in between, after which it is not started again."""
PROVEN_SECONDS = 60.0
"""What has lived this long since it was ready has proven itself, whether or not anyone asked it."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 10.0


class Attempts:
    """fruitless: ends in a row."""

    def __init__(self) -> None:
        self.fruitless = 0

    def brought(self) -> None:
        """It did what it is there for."""
        self.fruitless = 0

    def ended(self, lived: float) -> bool:
        """It ended, so many seconds after it was ready. Whether to start it again."""
        self.fruitless = 1 if lived > PROVEN_SECONDS else self.fruitless + 1
        return self.fruitless <= MOST_FRUITLESS

    @property
    def pause(self) -> float:
        """Seconds to wait before the next start; none after the first end."""
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * (2.0 ** (self.fruitless - 1) - 1))

    def told(self, reason: str) -> str:
        """The reason of the last end, and how often it was."""
        return reason if self.fruitless <= 1 else f"{reason}, {self.fruitless} times in a row"


def how(status: int) -> str:
    """How a process ended, by its exit status."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

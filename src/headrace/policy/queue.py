"""The order in which waiting requests are considered. FirstComeQueue is first come first served; preempted requests
return to the place that their ticket gives them. Another order is another class with these five methods.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from headrace.policy.sequence import Sequence


class Queue(Protocol):
    def __len__(self) -> int: ...

    def push(self, sequence: Sequence) -> None: ...

    def peek(self) -> Sequence | None:
        """The next to run, left in place."""

    def pop(self) -> Sequence:
        """Take what peek showed. Raises IndexError when empty."""

    def remove(self, sequence: Sequence) -> None:
        """Take one out from anywhere. Raises KeyError if it is not here."""


class FirstComeQueue:
    """A heap by ticket. Removed entries stay in the heap until they surface, so removal costs nothing now."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Sequence]] = []
        self._waiting: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.ticket, sequence))
        self._waiting.add(sequence.ticket)

    def peek(self) -> Sequence | None:
        while self._heap and self._heap[0][0] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        if self.peek() is None:
            raise IndexError("pop from an empty queue")
        ticket, sequence = heapq.heappop(self._heap)
        self._waiting.remove(ticket)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence.ticket)

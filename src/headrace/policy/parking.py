"""Requests that could run but are better off waiting: another request computes their prefix right now, the disk
brings it, or the form that their output takes is still compiled. They stand beside the queue, so they hold up nobody
behind them, and go back to their place in it as soon as what they wait for is done, or will not be.
"""

from collections.abc import Callable, Iterator

from headrace.core.batch import IntArray
from headrace.policy.sequence import Sequence


class Parking:
    """Who waits for a slot is keyed by it; who waits for the disk stands with the number of the last read. forming:
    who waits for a form, in the order of coming."""

    def __init__(self) -> None:
        self.forming: list[Sequence] = []
        self._fetching: list[tuple[int, Sequence]] = []
        self._waiting: dict[int, list[tuple[int, Sequence]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size + len(self.forming)

    def __iter__(self) -> Iterator[Sequence]:
        for waiting in self._waiting.values():
            yield from (sequence for _, sequence in waiting)
        yield from (sequence for _, sequence in self._fetching)
        yield from self.forming

    def park(self, sequence: Sequence, slot: int, position: int) -> None:
        """Until the first `position` positions of this slot are done, or it is left."""
        self._waiting.setdefault(slot, []).append((position, sequence))
        self._size += 1

    def park_for_disk(self, sequence: Sequence, read: int) -> None:
        """Until all reads up to this one have ended."""
        self._fetching.append((read, sequence))
        self._size += 1

    def brought(self, ended: Callable[[int], bool]) -> list[Sequence]:
        """Those for whom the disk has done what it could; ended(read): whether all reads up to it have. They are no
        longer here."""
        ready = [sequence for read, sequence in self._fetching if ended(read)]
        if ready:
            self._fetching = [entry for entry in self._fetching if not ended(entry[0])]
            self._size -= len(ready)
        return ready

    def remove(self, sequence: Sequence) -> bool:
        """Take one out before its time. False: it is not here."""
        if sequence in self.forming:
            self.forming.remove(sequence)
            return True
        for entry in self._fetching:
            if entry[1] is sequence:
                self._fetching.remove(entry)
                self._size -= 1
                return True
        for slot, waiting in self._waiting.items():
            for entry in waiting:
                if entry[1] is sequence:
                    waiting.remove(entry)
                    self._size -= 1
                    if not waiting:
                        del self._waiting[slot]
                    return True
        return False

    def formed(self, ready: Callable[[Sequence], bool]) -> list[Sequence]:
        """Those whose form is there. They are no longer here."""
        if not self.forming:
            return []
        formed = [sequence for sequence in self.forming if ready(sequence)]
        if formed:
            self.forming = [sequence for sequence in self.forming if sequence not in formed]
        return formed

    def left(self, slot: int) -> list[Sequence]:
        """Those who wait for a slot that was left. They are no longer here."""
        gone = [sequence for _, sequence in self._waiting.pop(slot, ())]
        self._size -= len(gone)
        return gone

    def arrived(self, done: IntArray) -> list[Sequence]:
        """Those whose prefix is done; done: int32 [num_slots]. They are no longer here."""
        ready: list[Sequence] = []
        for slot, waiting in tuple(self._waiting.items()):
            here = [sequence for position, sequence in waiting if position <= done[slot]]
            if here:
                ready += here
                self._waiting[slot] = [entry for entry in waiting if entry[0] > done[slot]]
                if not self._waiting[slot]:
                    del self._waiting[slot]
        self._size -= len(ready)
        return ready

"""The order in which waiting requests are served. Priority classes are strict, the lower number first; inside a class
the tenant that was given least (fairness.py) comes next; inside a tenant, first come first served. A preempted
request returns to the place that its ticket gives it.

With ageing, a request that has waited so many seconds counts as one class better, again and again, up to a cap. Every
operation costs the logarithm of what waits.
"""

import heapq
from collections.abc import Iterator
from typing import Protocol

from headrace.core.priority import DEFAULT_PRIORITY
from headrace.policy.fairness import Accounts
from headrace.policy.sequence import NOWHERE, Sequence

MOST_PASSED = 16
"""Most requests from behind that are served before one that does not fit yet."""

# Classes whose last served counter is remembered though nobody waits in them.
_MOST_EMPTY_CLASSES = 256


class Queue(Protocol):
    """version rises whenever another request may be next than before. accounts: where what tenants are given is
    counted."""

    version: int
    accounts: Accounts

    @property
    def contended(self) -> bool:
        """Whether several tenants wait in the class that is served next."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in no order."""

    @property
    def timed(self) -> bool:
        """Whether time alone may change the order."""

    def push(self, sequence: Sequence) -> None: ...

    def peek(self) -> Sequence | None:
        """The next to run, left in place."""

    def pop(self) -> Sequence:
        """Take what peek showed. Raises IndexError when empty."""

    def remove(self, sequence: Sequence) -> None:
        """Take one out from anywhere. Raises KeyError if it is not here."""

    def age(self, now: float) -> None:
        """Let time pass."""


# What a tenant was given, the ticket of its first request, its account.
Turn = tuple[float, int, int]


class Line:
    """One tenant's requests in one class, a heap by ticket. Those removed stay in it until they surface, or until
    they are the larger half."""

    __slots__ = ("_heap", "account", "turn", "waiting")

    def __init__(self, account: int) -> None:
        self.account = account
        self.turn: Turn | None = None
        self.waiting: dict[int, Sequence] = {}
        self._heap: list[int] = []

    def push(self, sequence: Sequence) -> None:
        self.waiting[sequence.ticket] = sequence
        heapq.heappush(self._heap, sequence.ticket)

    def first(self) -> Sequence:
        while self._heap[0] not in self.waiting:
            heapq.heappop(self._heap)
        return self.waiting[self._heap[0]]

    def remove(self, sequence: Sequence) -> None:
        del self.waiting[sequence.ticket]
        if len(self._heap) > 2 * len(self.waiting) + 16:
            self._heap = sorted(self.waiting)


class PriorityClass:
    """The lines of one class, and whose turn it is: a heap of turns. Counters only rise and so do first tickets, save
    when a request returns, so the least turn is found by bringing those up to date that come up outdated."""

    def __init__(self, accounts: Accounts) -> None:
        self.lines: dict[int, Line] = {}
        self._accounts = accounts
        self._turns: list[Turn] = []
        self._reached = 0.0

    def push(self, sequence: Sequence, *, returning: bool) -> None:
        account = sequence.account
        line = self.lines.get(account)
        if line is None:
            if not returning:
                first = self.first()
                least = self._reached if first is None else self._accounts.given(first.account)
                self._accounts.lift(account, least)
            line = self.lines[account] = Line(account)
        line.push(sequence)
        if line.turn is None or sequence.ticket < line.turn[1]:
            self._take_turn(line, sequence)

    def first(self) -> Sequence | None:
        while self._turns:
            turn = self._turns[0]
            line = self.lines.get(turn[2])
            if line is None or line.turn != turn:
                heapq.heappop(self._turns)
                continue
            first = line.first()
            if turn == (self._accounts.given(line.account), first.ticket, line.account):
                return first
            heapq.heappop(self._turns)
            self._take_turn(line, first)
        return None

    def serve(self, sequence: Sequence) -> None:
        """Take out the one whose turn it is."""
        self._reached = max(self._reached, self._accounts.given(sequence.account))
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        line = self.lines[sequence.account]
        line.remove(sequence)
        if not line.waiting:
            del self.lines[sequence.account]

    def _take_turn(self, line: Line, first: Sequence) -> None:
        line.turn = (self._accounts.given(line.account), first.ticket, line.account)
        heapq.heappush(self._turns, line.turn)


class FairQueue:
    """aging_s: seconds of waiting that make a request count as one class better, None for never. aging_cap: the best
    class that a request gets to in this way."""

    def __init__(
        self, accounts: Accounts | None = None, *, aging_s: float | None = None, aging_cap: int = DEFAULT_PRIORITY
    ) -> None:
        self.version = 0
        self.accounts = Accounts() if accounts is None else accounts
        self._aging_s = aging_s
        self._aging_cap = aging_cap
        self._now = 0.0
        self._classes: dict[int, PriorityClass] = {}
        self._prune_at = _MOST_EMPTY_CLASSES
        # The numbers of classes in which someone may wait, as a heap and as a set.
        self._order: list[int] = []
        self._listed: set[int] = set()
        self._promotions: list[tuple[float, int, int, Sequence]] = []
        self._pushes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for one in self._classes.values():
            for line in one.lines.values():
                yield from line.waiting.values()

    @property
    def contended(self) -> bool:
        head = self.peek()
        return head is not None and len(self._classes[head.effective].lines) > 1

    @property
    def timed(self) -> bool:
        return bool(self._promotions)

    def push(self, sequence: Sequence) -> None:
        returning = sequence.account != NOWHERE
        level = self._level(sequence)
        self._enter(sequence, self._aged(sequence, level), returning=returning)
        self._expect_promotion(sequence, level + 1)
        self._count += 1
        self.version += 1

    def peek(self) -> Sequence | None:
        while self._order:
            one = self._classes.get(self._order[0])
            first = one.first() if one is not None else None
            if first is not None:
                return first
            self._listed.discard(heapq.heappop(self._order))
        return None

    def pop(self) -> Sequence:
        first = self.peek()
        if first is None:
            raise IndexError("pop from an empty queue")
        self._classes[first.effective].serve(first)
        self._count -= 1
        self.version += 1
        return first

    def remove(self, sequence: Sequence) -> None:
        self._classes[sequence.effective].remove(sequence)
        self._count -= 1
        self.version += 1

    def age(self, now: float) -> None:
        self._now = now
        while self._promotions and self._promotions[0][0] <= now:
            _, _, level, sequence = heapq.heappop(self._promotions)
            if not self._waits(sequence):
                continue
            level = max(level, self._level(sequence))
            self._expect_promotion(sequence, level + 1)
            better = self._aged(sequence, level)
            if better < sequence.effective:
                self._classes[sequence.effective].remove(sequence)
                self._enter(sequence, better, returning=False)
                self.version += 1

    def _waits(self, sequence: Sequence) -> bool:
        one = self._classes.get(sequence.effective)
        line = one.lines.get(sequence.account) if one is not None else None
        return line is not None and sequence.ticket in line.waiting

    def _level(self, sequence: Sequence) -> int:
        """How many times its waiting has bettered its class by now."""
        return 0 if self._aging_s is None else max(0, int((self._now - sequence.arrived) / self._aging_s))

    def _aged(self, sequence: Sequence, level: int) -> int:
        return min(sequence.priority, max(sequence.priority - level, self._aging_cap))

    def _expect_promotion(self, sequence: Sequence, level: int) -> None:
        if self._aging_s is not None and sequence.priority - level >= self._aging_cap:
            self._pushes += 1
            due = sequence.arrived + level * self._aging_s
            heapq.heappush(self._promotions, (due, self._pushes, level, sequence))

    def _enter(self, sequence: Sequence, priority: int, *, returning: bool) -> None:
        one = self._classes.get(priority)
        if one is None:
            if len(self._classes) >= self._prune_at:
                self._classes = {number: other for number, other in self._classes.items() if other.lines}
                self._order = sorted(self._classes)
                self._listed = set(self._order)
                self._prune_at = 2 * len(self._classes) + _MOST_EMPTY_CLASSES
            one = self._classes[priority] = PriorityClass(self.accounts)
        if priority not in self._listed:
            self._listed.add(priority)
            heapq.heappush(self._order, priority)
        sequence.effective = priority
        sequence.account = self.accounts.open(priority, sequence.tenant)
        one.push(sequence, returning=returning)

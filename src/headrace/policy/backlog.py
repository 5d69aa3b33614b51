"""What waits, by priority and tenant, as three sums each; and how much of it goes before a newcomer. The queue decides
who is next; this only adds up, so that a prediction does not walk the queue.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Waiting:
    """requests; tokens: known ones that are to be computed; outputs: most that they may generate."""

    requests: int = 0
    tokens: int = 0
    outputs: int = 0

    def plus(self, other: Waiting, part: float = 1.0) -> Waiting:
        return Waiting(
            self.requests + round(part * other.requests),
            self.tokens + round(part * other.tokens),
            self.outputs + round(part * other.outputs),
        )


class Backlog:
    """Sums by priority (the lower number goes first) and tenant; what is empty is not kept."""

    def __init__(self) -> None:
        self._classes: dict[int, dict[str, Waiting]] = {}
        self.requests = 0
        self.tokens = 0

    def add(self, priority: int, tenant: str, tokens: int, outputs: int) -> None:
        self._change(priority, tenant, 1, tokens, outputs)

    def remove(self, priority: int, tenant: str, tokens: int, outputs: int) -> None:
        """What was added, with the same numbers."""
        self._change(priority, tenant, -1, -tokens, -outputs)

    def ahead(self, priority: int, tenant: str) -> Waiting:
        """What goes before a new request of this priority and tenant: all of higher priority, of its own class what
        its tenant has, and of each other tenant's as much, since tenants take turns."""
        total = Waiting()
        for level, tenants in self._classes.items():
            if level < priority:
                for waiting in tenants.values():
                    total = total.plus(waiting)
        tenants = self._classes.get(priority, {})
        own = tenants.get(tenant, Waiting())
        total = total.plus(own)
        for other, waiting in tenants.items():
            if other != tenant:
                total = total.plus(waiting, min(1.0, (own.requests + 1) / waiting.requests))
        return total

    def by_priority(self) -> dict[int, int]:
        """Requests that wait, by priority."""
        return {level: sum(w.requests for w in tenants.values()) for level, tenants in sorted(self._classes.items())}

    def _change(self, priority: int, tenant: str, requests: int, tokens: int, outputs: int) -> None:
        tenants = self._classes.setdefault(priority, {})
        waiting = tenants.setdefault(tenant, Waiting())
        waiting.requests += requests
        waiting.tokens += tokens
        waiting.outputs += outputs
        if waiting.requests == 0:
            del tenants[tenant]
            if not tenants:
                del self._classes[priority]
        self.requests += requests
        self.tokens += tokens

"""LateForms: forms that become ready one day, in any order. What was ready stays so until its request has ended."""

from __future__ import annotations

import random


class LateForms:
    """held: whether the form of each request that asked and has not ended is ready."""

    def __init__(self, seed: int = 0, share: float = 0.3) -> None:
        self.held: dict[str, bool] = {}
        self._draw = random.Random(seed)
        self._share = share

    def ready(self, request_id: str, wanted) -> bool:
        asked = self.held.setdefault(request_id, False)
        self.held[request_id] = asked or self._draw.random() < self._share
        return self.held[request_id]

    def release(self, request_id: str) -> None:
        self.held.pop(request_id, None)

    def wait(self, seconds: float) -> None:
        """Who has nothing else to do waits until one is ready."""
        unready = [name for name, ready in self.held.items() if not ready]
        if seconds > 0 and unready:
            self.held[self._draw.choice(unready)] = True

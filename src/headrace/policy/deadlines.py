"""Which requests have waited past their deadline. Only those that are still to begin are here; time is an argument."""

import heapq


class Deadlines:
    """A heap by time. What was removed stays in the heap until it surfaces, or until the heap is half of such."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._at)

    def add(self, request_id: str, at: float) -> None:
        self._at[request_id] = at
        heapq.heappush(self._heap, (at, request_id))

    def remove(self, request_id: str) -> None:
        """Ids that are not here are ignored."""
        self._at.pop(request_id, None)
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(at, request_id) for request_id, at in self._at.items()]
            heapq.heapify(self._heap)

    def passed(self, now: float) -> list[str]:
        """Take out those whose time has come, the earliest first."""
        late: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            at, request_id = heapq.heappop(self._heap)
            if self._at.get(request_id) == at:
                del self._at[request_id]
                late.append(request_id)
        return late

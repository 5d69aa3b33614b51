"""News: what replicas' caches tell a router that listens, as late as it comes. A replica that is lost meanwhile is not
heard any more.
"""

from collections import deque
from collections.abc import Sequence

from headrace.core.errors import ConfigError
from headrace.policy.block_events import BlockEvent
from headrace.policy.routing import PrefixIndex
from headrace.simulate.kinds import Simulated
from headrace.simulate.pools import Pools
from headrace.simulate.replica import Replica


def check_events(delay: float, fleet: Simulated, router: str) -> None:
    """ConfigError unless the router of this fleet may be told so many seconds late."""
    if not 0 <= delay < float("inf"):
        raise ConfigError(
            f"kv_events_delay_ms must be finite and at least 0, got {1e3 * delay:g}", field="kv_events_delay_ms"
        )
    if router != "prefix" or isinstance(fleet, Pools):
        raise ConfigError(
            "kv_events_delay_ms goes with router prefix and replicas that are all alike: no other heeds what is cached",
            field="kv_events_delay_ms",
        )


class News:
    """delay: seconds between a step's end and the router's knowing what it did to a cache."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._coming: deque[tuple[int, Replica, list[BlockEvent]]] = deque()

    def take(self, index: int, replica: Replica, now: float) -> float | None:
        """What this replica has to tell now, and when the router hears it; None for nothing."""
        events = replica.engine.take_events()
        if not events:
            return None
        self._coming.append((index, replica, events))
        return now + self._delay

    def tell(self, index: PrefixIndex, replicas: Sequence[Replica | None]) -> None:
        """The router hears the oldest of what was told."""
        place, replica, events = self._coming.popleft()
        if replicas[place] is replica:
            index.follow(place, events)

"""Kind: what the replicas of a pool have in common, how each of them is made, and the router before them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.engine.executor import Capacity
from headrace.policy import routing
from headrace.policy.latency import LatencyModel
from headrace.policy.pace import Pace
from headrace.policy.replica import Speed
from headrace.simulate.guesses import Guesser, Guessing
from headrace.simulate.replica import Replica, Sink

_BLIND: dict[str, Callable[[], routing.Router]] = {
    "round-robin": routing.RoundRobin,
    "least-loaded": routing.LeastLoaded,
    "two-choices": routing.TwoChoices,
}
"""Those that know nothing of prompts."""
ROUTERS = (*_BLIND, "prefix")
_TYPICAL_CONTEXT = 4096
_NOWHERE = "inproc://simulated"
"""Where events are published: nobody binds it, the simulation takes them from the engine."""


class Simulated(Protocol):
    """What is simulated: a Fleet, Pools, or an engine that is here (fidelity.py)."""

    @property
    def replicas(self) -> int: ...

    @property
    def guessing(self) -> Guessing | None: ...

    def capacity(self) -> Capacity: ...

    def config(self) -> Config: ...

    def pace(self) -> Pace: ...


class Kind:
    """log: requests of which an engine keeps records, None for no such records; events: whether it tells what its cache
    stores and removes. guessing: how tokens are guessed ahead; receives: prompts computed elsewhere that may be on
    their way to one at once. index: what the prefix router knows of their caches."""

    def __init__(self, fleet: Simulated, log: int | None, *, events: bool = False) -> None:
        self.replicas = fleet.replicas
        self.capacity, self.config, self.pace = fleet.capacity(), fleet.config(), fleet.pace()
        if log is not None:
            self.config = replace(self.config, request_log=log)
        if events:
            self.config = replace(self.config, kv_events_endpoint=_NOWHERE)
        self._events = events
        self.index = routing.PrefixIndex(self.replicas)
        self.latency = LatencyModel(self.pace, learning=False)
        self.guessing, self.receives = fleet.guessing, 0

    @property
    def speed(self) -> Speed:
        return Speed.of(self.pace, self.config.max_num_batched_tokens, _TYPICAL_CONTEXT)

    def replica(self, sink: Sink, seed: int) -> Replica:
        """seed: of what is guessed right."""
        guesser = None if self.guessing is None else Guesser(self.guessing, seed)
        return Replica(self.capacity, self.config, self.pace, self.latency, sink, guesser, self.receives)

    def router(self, name: str, *, answers: bool) -> routing.Router:
        """answers: whether these replicas answer, or only compute prompts. ConfigError for one that is not known."""
        if name in _BLIND:
            return _BLIND[name]()
        if name == "prefix":
            assumed = None
            if not self._events:
                assumed = routing.Assumed(self.index, [min(self.capacity.num_blocks)] * self.replicas)
            answer = routing.TYPICAL_ANSWER if answers else 1
            return routing.LongestPrefix(self.index, self.speed, self.capacity.block_size, assumed, answer=answer)
        raise ConfigError(f"router must be one of {', '.join(ROUTERS)}, got {name!r}", field="router")

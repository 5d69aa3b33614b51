"""What the API process asks of an engine, wherever that engine runs. The server and its tests know only this;
engine/client.py is the one over ZeroMQ."""

import enum
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from headrace.core.request import OutputDelta, Request
from headrace.engine.wire import Inspected, Ready, Stats


class HealthState(enum.StrEnum):
    """DEGRADED: nothing moves at the moment, but it may again. DEAD: it will not."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DEAD = "dead"


class Health(NamedTuple):
    state: HealthState
    reason: str = ""


class EngineClient(Protocol):
    """restarts: how often the engine had to be started again."""

    restarts: int

    @property
    def ready(self) -> Ready: ...

    async def add(self, request: Request) -> AsyncIterator[OutputDelta]:
        """Hand over a request and wait until the engine takes it. Raises RequestError (OverloadedError) when it
        refuses, EngineDeadError when it is gone. The iterator ends after the delta with a finish_reason, or raises
        EngineDeadError when the engine goes away first."""

    async def abort(self, request_ids: list[str]) -> None:
        """Stop these requests and free what they hold; unknown ids are ignored."""

    def stats(self) -> Stats:
        """What the engine published last, which it does while it works. Never waits. Raises EngineDeadError when the
        engine is gone."""

    async def inspect(self, request_id: str = "", steps: int = 0) -> Inspected:
        """What became of a client's request, and the last steps; waits for the step under way. Raises EngineDeadError
        if the engine is gone or does not answer in time."""

    def health(self) -> Health:
        """Whether the engine makes progress. Never waits."""

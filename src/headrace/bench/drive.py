"""Runs requests on an engine in this process and hands over each step's deltas as soon as the step is done: what
every measurement, and every command that shows text, stands on.
"""

from __future__ import annotations

from collections.abc import Generator

from headrace.bench.timeline import Clock
from headrace.core.request import OutputDelta, Request
from headrace.engine.engine import Engine


class Driver:
    """Callable with requests. Closing what it returns aborts those that have not ended, and frees what they hold."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def __call__(self, requests: list[Request]) -> Generator[list[OutputDelta], None, None]:
        """Raises RequestError if the engine refuses a request; none of them runs then."""
        try:
            for request in requests:
                self._engine.add(request, self._clock())
            while self._engine.has_work:
                yield self._engine.step(self._clock)
        finally:
            self._engine.abort([r.request_id for r in requests], self._clock())
            while self._engine.has_work:
                self._engine.step(self._clock)

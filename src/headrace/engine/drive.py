"""Runs requests on an engine in this process and hands over each step's deltas as soon as the step is done. LLM,
the commands and every measurement stand on it.
"""

from collections.abc import Callable, Generator, Sequence

from headrace.core.request import OutputDelta, Request
from headrace.engine.engine import Engine


def drive(
    engine: Engine, requests: Sequence[Request], clock: Callable[[], float]
) -> Generator[list[OutputDelta], None, None]:
    """Run requests to their end. Closing the generator aborts those that have not ended and frees what they hold.
    Raises RequestError if the engine refuses one of them; then none is left behind."""
    try:
        for request in requests:
            engine.add(request, clock())
        while engine.has_work:
            yield engine.step(clock)
    finally:
        engine.abort([request.request_id for request in requests], clock())
        while engine.has_work:
            engine.step(clock)

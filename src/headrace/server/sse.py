"""Delivering an answer to a client who may leave or stop reading at any time: server-sent events with the end that
OpenAI clients wait for, and plain answers that are dropped when nobody is there to read them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.core.errors import EngineDeadError
from headrace.server.errors import CLIENT_CLOSED_REQUEST, GenerationError, error_event
from headrace.server.generation import Generation

T = TypeVar("T")

log = logging.getLogger("headrace.server")

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
]


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Run work until done, or until the client goes away: then cancel it, wait for its clean-up, return None. The
    body must have been read."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def whole_answer(
    request: Request, generation: Generation, collect: Callable[[], Coroutine[Any, Any, bytes]]
) -> Response:
    """Generate everything, then answer in one piece."""

    async def run() -> bytes:
        async with generation:
            return await collect()

    body = await while_connected(request.receive, run())
    if body is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Response(body, media_type="application/json")


class EventStream:
    """An ASGI response that sends `events` while the generation runs. Headers wait for the engine's yes, so that a
    refusal is a plain 4xx. A reader that takes nothing for stall_timeout seconds is dropped."""

    def __init__(self, generation: Generation, events: AsyncIterator[bytes], stall_timeout: float) -> None:
        self._generation = generation
        self._events = events
        self._stall_timeout = stall_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        async with self._generation:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            async for part in self._parts():
                try:
                    async with asyncio.timeout(self._stall_timeout):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                except TimeoutError:
                    # Returning with the response incomplete makes the web server close the connection.
                    log.warning("a client took nothing from its stream for %g s: dropped", self._stall_timeout)
                    return
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self) -> AsyncIterator[bytes]:
        try:
            async for event in self._events:
                yield event
        except (GenerationError, EngineDeadError) as error:
            yield error_event(error)
        except Exception as error:
            log.error("a stream failed", exc_info=error)
            yield error_event(error)
        yield DONE

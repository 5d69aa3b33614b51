"""Delivering an answer to a client who may leave or stop reading at any time: server-sent events with the end that
OpenAI clients wait for, and plain answers that are dropped when nobody is there to read them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.core.errors import EngineDeadError
from headrace.server.connection import CHUNK_NOW
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


async def unless(work: Coroutine[Any, Any, T], *ends: Coroutine[Any, Any, None]) -> T | None:
    """Run work until it is done, or until one of `ends` is: then cancel it, wait for its clean-up, return None."""
    task = asyncio.create_task(work)
    others = [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait((task, *others), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, *others):
            each.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    """Ends when the client goes away. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def whole_answer(
    request: Request, generation: Generation, collect: Callable[[], Coroutine[Any, Any, bytes]]
) -> Response:
    """Generate everything, then answer in one piece."""

    async def run() -> bytes:
        async with generation:
            return await collect()

    body = await unless(run(), _gone(request.receive))
    if body is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Response(body, media_type="application/json")


class EventStream:
    """An ASGI response that sends `events` while the generation runs. Headers wait for the engine's yes, so that a
    refusal is a plain 4xx. A reader that takes nothing for stall_timeout seconds is dropped. done ends every stream;
    fault writes an error as an event."""

    def __init__(
        self,
        generation: Generation,
        events: AsyncIterator[bytes],
        stall_timeout: float,
        *,
        done: bytes = DONE,
        fault: Callable[[Exception], bytes] = error_event,
    ) -> None:
        self._done = done
        self._fault = fault
        self._generation = generation
        self._events = events
        self._stall_timeout = stall_timeout
        self._sending_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write_now = scope.get("extensions", {}).get(CHUNK_NOW, {}).get("write", _never)
        await unless(self._run(send, write_now), _gone(receive), self._stalled())

    async def _run(self, send: Send, write_now: Callable[[bytes], bool]) -> None:
        async with self._generation:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            fault = b""
            try:
                async for event in self._events:
                    # They come with every token of every stream, so what waits for nobody takes the short way.
                    if not write_now(event):
                        await self._write(send, event)
            except Exception as error:  # the head is sent: whatever it is, only an event can still say so
                if not isinstance(error, GenerationError | EngineDeadError):
                    log.error("a stream failed", exc_info=error)
                fault = self._fault(error)
            if fault or self._done:
                await self._write(send, fault + self._done)
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, events: bytes) -> None:
        self._sending_since = time.monotonic()
        await send({"type": "http.response.body", "body": events, "more_body": True})
        self._sending_since = None

    async def _stalled(self) -> None:
        """Ends when the client has taken nothing for stall_timeout. Leaving the response incomplete then makes the
        web server close the connection."""
        while self._sending_since is None or time.monotonic() - self._sending_since < self._stall_timeout:
            await asyncio.sleep(self._stall_timeout / 4)
        log.warning("a client took nothing from its stream for %g s: dropped", self._stall_timeout)


def _never(body: bytes) -> bool:
    return False

"""OutputStream: one request's deltas, between the engine's socket and whoever reads them. What the reader has not taken
yet is kept as one merged delta, so a slow reader holds at most the request's own output and never stops the engine.
"""

from __future__ import annotations

import asyncio

from headrace.core.errors import EngineDeadError
from headrace.core.request import OutputDelta


class OutputStream:
    """An iterator that ends after the delta with a finish_reason, or raises the error it was failed with. accepted:
    done once the engine has taken the request, or with its refusal as the exception."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self._loop.create_future()
        self._pending: OutputDelta | None = None
        self._reader: asyncio.Future[None] | None = None
        self._ended = False
        self._error: EngineDeadError | None = None

    def put(self, delta: OutputDelta) -> None:
        if self._pending is None:
            self._pending = delta
            self._wake()
        else:
            self._pending.absorb(delta)

    def fail(self, error: EngineDeadError) -> None:
        """Nothing more will come: the reader gets what is here, then the error."""
        self._error = error
        self._wake()
        if not self.accepted.done():
            self.accepted.set_exception(error)

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> OutputDelta:
        if self._ended:
            raise StopAsyncIteration
        while self._pending is None:
            if self._error is not None:
                raise self._error
            self._reader = self._loop.create_future()
            await self._reader
        delta, self._pending = self._pending, None
        self._ended = delta.finish_reason is not None
        return delta

    def _wake(self) -> None:
        """Let the reader, of whom there is one at most, go on."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

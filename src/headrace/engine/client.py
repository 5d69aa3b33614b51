"""ProcessClient: an EngineClient over the local socket of an engine in another process. It owns one stream per live
request, tells liveness by the engine's heartbeat, and if the process ends, ends every stream with a clear error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio

from headrace.core.errors import EngineDeadError, EngineError, OverloadedError, RequestError
from headrace.core.request import FinishReason, OutputDelta, Request
from headrace.engine.heartbeat import Pulse
from headrace.engine.output_stream import OutputStream
from headrace.engine.wire import (
    HEARTBEAT_NAME,
    SOCKET_NAME,
    Abort,
    Accepted,
    Add,
    Failed,
    FromEngine,
    Hello,
    Outputs,
    Ready,
    Refused,
    Shutdown,
    Stats,
    ToEngine,
    decode_from_engine,
    encode,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

_WATCH_SECONDS = 0.2


class ProcessClient:
    """Call start() before anything else, close() at the end. exit_status tells the engine process's exit status,
    None while it lives."""

    def __init__(self, folder: Path, exit_status: Callable[[], int | None]) -> None:
        self._folder = folder
        self._exit_status = exit_status
        self._streams: dict[str, OutputStream] = {}
        self._stats = Stats()
        self._ready: asyncio.Future[Ready] | None = None
        self._pulse: Pulse | None = None
        self._dead: str | None = None
        self._context = zmq.asyncio.Context()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Ready:
        """Wait until the engine is loaded. Raises EngineDeadError with its reason if it could not start."""
        self._ready = asyncio.get_running_loop().create_future()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)
        self._socket.connect(f"ipc://{self._folder / SOCKET_NAME}")
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]
        await self._send(Hello())
        ready = await self._ready
        self._pulse = Pulse(self._folder / HEARTBEAT_NAME)
        return ready

    @property
    def ready(self) -> Ready:
        if self._ready is None or not self._ready.done():
            raise EngineError("the engine is not ready yet")
        return self._ready.result()

    async def add(self, request: Request) -> AsyncIterator[OutputDelta]:
        """As EngineClient.add. If the caller is cancelled while it waits, the request is aborted."""
        self._check_alive()
        if request.request_id in self._streams:
            raise EngineError(f"request_id {request.request_id!r} is in use: ids are made at the edge, one per request")
        stream = self._streams[request.request_id] = OutputStream(request.request_id)
        try:
            await self._send(Add(request))
            await stream.accepted
        except asyncio.CancelledError:
            await self.abort([request.request_id])
            raise
        except (RequestError, EngineError):
            self._streams.pop(request.request_id, None)
            raise
        return stream

    async def abort(self, request_ids: list[str]) -> None:
        """As EngineClient.abort. Their streams, if someone still reads them, end with FinishReason.ABORT."""
        live = [i for i in request_ids if i in self._streams]
        for request_id in live:
            self._end(request_id, FinishReason.ABORT)
        if live and self._dead is None:
            await self._send(Abort(live))

    def stats(self) -> Stats:
        self._check_alive()
        return self._stats

    def healthy(self) -> tuple[bool, str]:
        if self._dead is not None:
            return False, self._dead
        if self._pulse is None:
            return False, "the engine is still loading"
        return self._pulse.check(time.monotonic())

    def stop(self, reason: str) -> None:
        """Take nothing more, and end every stream with this as its error, which its client may read."""
        if self._dead is None:
            for request_id in list(self._streams):
                self._end(request_id, FinishReason.ERROR, reason)
        self._die(reason)

    async def shutdown(self) -> None:
        """Ask the engine process to end at once."""
        if self._exit_status() is None:
            await self._send(Shutdown())

    def close(self) -> None:
        """Let go of the socket; streams still open end with an error."""
        self.stop("the client was closed")
        for task in self._tasks:
            task.cancel()
        self._context.destroy(linger=0)

    async def _send(self, message: ToEngine) -> None:
        await self._socket.send(encode(message))

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    async def _receive(self) -> None:
        while True:
            body = await self._socket.recv()
            try:
                message = decode_from_engine(body)
            except msgspec.MsgspecError as error:
                log.error("the engine sent an unreadable message: %s", error)
                self._die("the engine sent an unreadable message")
                return
            self._handle(message)

    def _handle(self, message: FromEngine) -> None:
        match message:
            case Outputs(deltas):
                for delta in deltas:
                    self._deliver(delta)
            case Accepted(request_id):
                if request_id in self._streams:
                    _resolve(self._streams[request_id].accepted, None)
            case Refused():
                stream = self._streams.pop(message.request_id, None)
                if stream is not None and not stream.accepted.done():
                    stream.accepted.set_exception(_refusal(message))
            case Stats():
                self._stats = message
            case Ready():
                if self._ready is not None:
                    _resolve(self._ready, message)
            case Failed():
                self._die(message.message)

    def _deliver(self, delta: OutputDelta) -> None:
        """Hand a delta to its stream; there is none if the request was aborted here."""
        stream = self._streams.get(delta.request_id)
        if stream is None:
            return
        stream.put(delta)
        if delta.finish_reason is not None:
            del self._streams[delta.request_id]

    async def _watch(self) -> None:
        """Notice that the engine process ended; what it sent before is delivered first."""
        while (status := self._exit_status()) is None:
            await asyncio.sleep(_WATCH_SECONDS)
        await asyncio.sleep(_WATCH_SECONDS)
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        self._die(f"the engine process {how}")

    def _die(self, reason: str) -> None:
        """Nothing more will come: everyone who waits learns why. The first reason stays."""
        if self._dead is not None:
            return
        self._dead = reason
        error = EngineDeadError(reason)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    def _end(self, request_id: str, reason: FinishReason, message: str | None = None) -> None:
        stream = self._streams.pop(request_id)
        if message is not None and not stream.accepted.done():
            stream.accepted.set_exception(EngineDeadError(message))
        stream.put(OutputDelta(request_id, finish_reason=reason, error=message))


def _resolve(future: asyncio.Future[T], value: T) -> None:
    """Set a result unless whoever waited gave up."""
    if not future.done():
        future.set_result(value)


def _refusal(refused: Refused) -> RequestError:
    if refused.retry_after is not None:
        return OverloadedError(refused.message, retry_after=refused.retry_after, code=refused.code or "overloaded")
    return RequestError(refused.message, param=refused.param, code=refused.code)

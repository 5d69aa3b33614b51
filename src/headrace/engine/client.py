"""ProcessClient: an EngineClient over the local socket of an engine in another process. It owns one stream per live
request and tells liveness by the engine's heartbeat. An engine that ends, or hangs, is started again and gets the live
requests as they stand, so that their readers notice a pause and no change; where that is no use, streams end with a
clear error.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import zmq
import zmq.asyncio

from headrace.core.errors import EngineDeadError, EngineError, OverloadedError, RequestError
from headrace.core.request import FinishReason, OutputDelta, Request
from headrace.engine import wire
from headrace.engine.attempts import Attempts, how
from headrace.engine.client_protocol import Health, HealthState
from headrace.engine.heartbeat import Pulse
from headrace.engine.meeting_folder import FAILURE_NAME, HEARTBEAT_NAME, SOCKET_NAME
from headrace.engine.replay import LiveRequest, LiveRequests
from headrace.engine.trial_gate import TrialGate

log = logging.getLogger(__name__)
T = TypeVar("T")

INSPECT_SECONDS = 30.0
"""How long an inspection may wait for the step under way."""

_WATCH_SECONDS = 0.2


class EngineHandle(Protocol):
    """The engine's process, as its client sees it. folder holds its socket and heartbeat, and may be another after a
    restart."""

    @property
    def folder(self) -> Path: ...

    def exit_status(self) -> int | None:
        """None while it lives; negative if a signal ended it."""

    def kill(self) -> None: ...

    def restart(self) -> None:
        """Have it started again, after it has ended. Raises OSError where that cannot be."""


class ProcessClient:
    """Call start() before anything else, close() at the end. gate: where other clients have the same engine, and
    another process decides how often it is started again."""

    def __init__(self, engine: EngineHandle, gate: TrialGate | None = None) -> None:
        self._engine = engine
        self._gate = gate
        self._live = LiveRequests()
        self._stats = wire.Stats()
        self._inspecting: dict[int, asyncio.Future[wire.Inspected]] = {}
        self._inspections = 0
        # Of the first engine; it does not change when another takes its place.
        self._ready: asyncio.Future[wire.Ready] | None = None
        self._pulse: Pulse | None = None
        self._dead: str | None = None
        # Why there is no engine at the moment.
        self._restarting: str | None = None
        self._ready_at = 0.0
        self._attempts = Attempts()
        self.restarts = 0
        self._context = zmq.asyncio.Context()
        self._receiving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> wire.Ready:
        """Wait until the engine is loaded. Raises EngineDeadError with its reason if it could not start."""
        self._ready = asyncio.get_running_loop().create_future()
        await self._connect()
        self._watching = asyncio.create_task(self._watch())
        return await self._ready

    @property
    def ready(self) -> wire.Ready:
        if self._ready is None or not self._ready.done():
            raise EngineError("the engine is not ready yet")
        return self._ready.result()

    async def add(self, request: Request) -> AsyncIterator[OutputDelta]:
        """As EngineClient.add. If the caller is cancelled while it waits, the request is aborted."""
        self._check_alive()
        if request.request_id in self._live:
            raise EngineError(f"request_id {request.request_id!r} is in use: ids are made at the edge, one per request")
        stream = self._live.add(request).stream
        try:
            await self._send_due()
            await stream.accepted
        except asyncio.CancelledError:
            await self.abort([request.request_id])
            raise
        except (RequestError, EngineError):
            if request.request_id in self._live:
                self._live.pop(request.request_id)
            raise
        return stream

    async def abort(self, request_ids: list[str]) -> None:
        """As EngineClient.abort. Their streams, if someone still reads them, end with FinishReason.ABORT."""
        live = [i for i in request_ids if i in self._live]
        for request_id in live:
            self._end(request_id, FinishReason.ABORT)
        if live and self._dead is None and self._restarting is None:
            await self._send(wire.Abort(live))
            await self._send_due()

    def stats(self) -> wire.Stats:
        self._check_alive()
        return self._stats

    async def inspect(self, request_id: str = "", steps: int = 0) -> wire.Inspected:
        self._check_alive()
        if self._restarting is not None:
            raise EngineDeadError(self._restarting)
        self._inspections += 1
        number = self._inspections
        answer: asyncio.Future[wire.Inspected] = asyncio.get_running_loop().create_future()
        self._inspecting[number] = answer
        try:
            await self._send(wire.Inspect(number, request_id, steps))
            return await asyncio.wait_for(answer, INSPECT_SECONDS)
        except TimeoutError:
            raise EngineDeadError(f"the engine did not answer within {INSPECT_SECONDS:.0f} s") from None
        finally:
            del self._inspecting[number]

    def health(self) -> Health:
        if self._dead is not None:
            return Health(HealthState.DEAD, self._dead)
        if self._restarting is not None:
            return Health(HealthState.DEGRADED, f"{self._restarting}; it is being started again")
        if self._pulse is None:
            return Health(HealthState.DEGRADED, "the engine is still loading")
        moves, reason = self._pulse.check(time.monotonic())
        return Health(HealthState.HEALTHY if moves else HealthState.DEGRADED, reason)

    def stop(self, reason: str) -> None:
        """Take nothing more, and end every stream with this as its error, which its client may read."""
        if self._dead is None:
            for request_id in self._live:
                self._end(request_id, FinishReason.ERROR, reason)
        self._die(reason)

    async def shutdown(self) -> None:
        """Ask the engine process to end at once."""
        self._die("the engine was asked to end")
        if self._engine.exit_status() is None and not self._socket.closed:
            await self._send(wire.Shutdown())

    def close(self) -> None:
        """Let go of the socket; streams still open end with an error."""
        self.stop("the client was closed")
        for task in (self._receiving, self._watching):
            if task is not None:
                task.cancel()
        self._context.destroy(linger=0)
        if self._gate is not None:
            self._gate.close()

    async def _connect(self) -> None:
        """A socket of this engine's own: what was meant for the last one never reaches it."""
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)
        self._socket.connect(f"ipc://{self._engine.folder / SOCKET_NAME}")
        self._receiving = asyncio.create_task(self._receive())
        await self._send(wire.Hello(os.getpid()))

    async def _send(self, message: wire.ToEngine) -> None:
        await self._socket.send(wire.encode(message))

    async def _send_due(self) -> None:
        """Hand over whoever waits for an engine, if there is one."""
        if self._restarting is not None or self._dead is not None:
            return
        if self._gate is not None and self._live.holding and not self._gate.pass_through(trying=self._live.tries):
            return
        for live in self._live.due():
            await self._send(wire.Add(live.as_replay(), replayed=live.accepted))

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    async def _receive(self) -> None:
        while True:
            body = await self._socket.recv()
            try:
                message = wire.decode_from_engine(body)
            except msgspec.MsgspecError as error:
                log.error("the engine sent an unreadable message: %s", error)
                self._die("the engine sent an unreadable message")
                return
            await self._handle(message)

    async def _handle(self, message: wire.FromEngine) -> None:
        match message:
            case wire.Outputs(deltas):
                self._attempts.brought()
                for delta in deltas:
                    self._deliver(delta)
                if self._live.holding:
                    await self._send_due()
            case wire.Accepted(request_id):
                live = self._live.get(request_id)
                if live is not None:
                    _resolve(live.stream.accepted, None)
            case wire.Refused():
                self._refused(message)
            case wire.Stats():
                self._stats = message
            case wire.Inspected(number):
                if number in self._inspecting:
                    _resolve(self._inspecting[number], message)
            case wire.Ready():
                await self._engine_ready(message)

    async def _engine_ready(self, ready: wire.Ready) -> None:
        assert self._ready is not None
        self._pulse = Pulse(self._engine.folder / HEARTBEAT_NAME)
        self._ready_at = time.monotonic()
        if not self._ready.done():
            self._ready.set_result(ready)
        elif self._ready.result().fingerprint != ready.fingerprint:
            self._die("the model was changed while its engine was started again: restart the server")
        elif self._restarting is not None:
            log.warning("the engine runs again; live requests that go on: %d", len(self._live))
            self._restarting = None
            await self._send_due()

    def _refused(self, refused: wire.Refused) -> None:
        live = self._live.get(refused.request_id)
        if live is None:
            return
        if live.accepted:
            self._end(refused.request_id, FinishReason.ERROR, refused.message)
        else:
            self._live.pop(refused.request_id)
            live.stream.accepted.set_exception(_refusal(refused))

    def _deliver(self, delta: OutputDelta) -> None:
        """Hand a delta to its stream; there is none if the request was aborted here."""
        live = self._live.get(delta.request_id)
        if live is None:
            return
        self._live.take(live, delta)
        if delta.finish_reason is not None:
            self._live.pop(delta.request_id)

    async def _watch(self) -> None:
        """Notice that the engine process ended, or end one that hangs, and have it started again."""
        while self._dead is None:
            await asyncio.sleep(_WATCH_SECONDS)
            status = self._engine.exit_status()
            if status is None:
                if self._gate is not None and self._live.holding:
                    await self._send_due()
                if self._pulse is not None and self._pulse.hangs(time.monotonic()):
                    log.error("the engine process hangs: killed")
                    self._engine.kill()
                continue
            # What it sent before it ended is delivered first.
            await asyncio.sleep(_WATCH_SECONDS)
            if self._dead is None:
                await self._restart(status)

    async def _restart(self, status: int) -> None:
        reason = f"the engine process {how(status)}"
        again = self._attempts.ended(0.0 if self._pulse is None else time.monotonic() - self._ready_at)
        failure = self._engine.folder / FAILURE_NAME
        if failure.exists():
            self._die(failure.read_text(encoding="utf-8"))
            return
        if self._ready is None or not self._ready.done() or not (again or self._gate is not None):
            self._die(self._attempts.told(reason))
            return
        self._restarting, self._pulse = reason, None
        self._fail_inspections(EngineDeadError(reason))
        culprit = self._live.crashed()
        if culprit is not None:
            log.error("request %s ends the engine: it is not tried again", culprit.request.request_id)
            _fail(culprit, _CULPRIT)
        log.error("%s; starting it again; live requests: %d", reason, len(self._live))
        if self._receiving is not None:
            self._receiving.cancel()
        self._socket.close(linger=0)
        if self._gate is None:
            await asyncio.sleep(self._attempts.pause)
        else:
            self._gate.pass_through(trying=self._live.tries)
        if self._dead is not None:
            return
        try:
            self._engine.restart()
        except OSError as error:
            self._die(f"{reason}, and is not started again: {error}")
            return
        self.restarts += 1
        await self._connect()

    def _die(self, reason: str) -> None:
        """Nothing more will come: everyone who waits learns why. The first reason stays."""
        if self._dead is not None:
            return
        self._dead = reason
        error = EngineDeadError(reason)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        self._fail_inspections(error)
        for request_id in self._live:
            self._live.pop(request_id).stream.fail(error)

    def _fail_inspections(self, error: EngineDeadError) -> None:
        for inspecting in self._inspecting.values():
            if not inspecting.done():
                inspecting.set_exception(error)

    def _end(self, request_id: str, reason: FinishReason, message: str | None = None) -> None:
        live = self._live.pop(request_id)
        if message is not None and not live.accepted:
            live.stream.accepted.set_exception(EngineDeadError(message))
        live.stream.put(OutputDelta(request_id, finish_reason=reason, error=message))


_CULPRIT = "the engine failed each time it computed this request; other requests are not affected"


def _fail(live: LiveRequest, message: str) -> None:
    if not live.accepted:
        live.stream.accepted.set_result(None)
    live.stream.put(OutputDelta(live.request.request_id, finish_reason=FinishReason.ERROR, error=message))


def _resolve(future: asyncio.Future[T], value: T) -> None:
    """Set a result unless whoever waited gave up."""
    if not future.done():
        future.set_result(value)


def _refusal(refused: wire.Refused) -> RequestError:
    if refused.retry_after is not None:
        return OverloadedError(refused.message, retry_after=refused.retry_after, code=refused.code or "overloaded")
    return RequestError(refused.message, param=refused.param, code=refused.code)

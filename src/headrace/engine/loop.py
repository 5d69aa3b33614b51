"""EngineLoop: runs an engine for clients over a local ZeroMQ socket. It reads messages without waiting while there
is work and sleeps in poll while there is none, answers every Add before its outputs, and lets no message, however
malformed, end the engine.
"""

import logging
import math
import os
import signal
import socket as sockets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import OutputDelta
from headrace.engine import wire
from headrace.engine.engine import Engine
from headrace.engine.heartbeat import Heartbeat
from headrace.engine.kv_events import EventPublisher
from headrace.engine.meeting_folder import FAILURE_NAME, HEARTBEAT_NAME, SOCKET_NAME

log = logging.getLogger(__name__)

_MESSAGES_PER_STEP = 256
_SETTLE_S = 3.0
"""Most seconds that what is cached may take to reach the disk at the end."""
_PUBLISH_SECONDS = 0.1
"""Stats go out at most this often while there is work."""


class EngineLoop:
    """Owns the socket and who asked for which request. folder must be private (mode 0700): whoever can reach the
    socket can use the engine. events: where what the prefix cache stores and removes is told."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        ready: wire.Ready,
        *,
        parent: int | None = None,
        events: EventPublisher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._ready = ready
        self._clock = clock
        self._events = events
        self._owners: dict[str, bytes] = {}
        # The process of each client, 0 where it is not known.
        self._greeted: dict[bytes, int] = {}
        self._published = clock()
        self._draining = self._stopped = False
        self._wake, self._waker = sockets.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._heartbeat = Heartbeat(folder / HEARTBEAT_NAME, parent=parent)
        self._context = zmq.Context()
        self._socket = bind(self._context, folder)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)
        if events is not None and events.replay is not None:
            self._poller.register(events.replay, zmq.POLLIN)

    def run(self) -> None:
        """Until Shutdown or a second stop(); after one stop(), until nothing is left to do."""
        try:
            while not self._stopped:
                self._read()
                if self._events is not None:
                    self._events.answer()
                if self._engine.has_work:
                    self._step()
                elif self._draining:
                    break
                elif (wait := self._engine.next_chore(self._clock())) is None:
                    self._sleep()
                elif wait > 0:
                    self._sleep(wait)
                else:
                    self._step()
            if not self._engine.has_work:
                self._engine.settle(self._clock, _SETTLE_S)
        finally:
            self._heartbeat.close()
            self._socket.close(linger=1000)
            self._context.term()
            if self._events is not None:
                self._events.close()
            self._wake.close()
            self._waker.close()

    def stop(self) -> None:
        """Finish what was accepted and refuse the rest; called again, stop at once. Safe from a signal handler and
        from another thread."""
        self._stopped = self._draining
        self._draining = True
        self._waker.send(b"\0")

    def stop_on(self, *signals: signal.Signals) -> None:
        """Let these signals stop the loop, also one that arrives just before it goes to sleep."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, lambda *_: self.stop())

    def _sleep(self, seconds: float | None = None) -> None:
        """Until a message or a signal comes, or so long."""
        self._poller.poll(None if seconds is None else math.ceil(1000 * seconds))
        self._empty_wake()

    def _empty_wake(self) -> None:
        try:
            self._wake.recv(16)
        except BlockingIOError:
            return

    def _read(self) -> None:
        """Take the messages that wait, up to a bound so that steps go on under a flood of them."""
        for _ in range(_MESSAGES_PER_STEP):
            if not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            frames = self._socket.recv_multipart()
            if len(frames) != 2:
                log.warning("ignored a message of %d frames, expected 2", len(frames))
                continue
            client, body = frames
            if client not in self._greeted:
                self._greeted[client] = 0
                self._send(client, self._engine.stats())
                self._send(client, self._ready)
            try:
                message = wire.decode_to_engine(body)
            except (msgspec.MsgspecError, RequestError, RecursionError) as error:
                log.warning("ignored a malformed message of %d bytes: %s", len(body), error)
                continue
            self._handle(client, message)

    def _handle(self, client: bytes, message: wire.ToEngine) -> None:
        match message:
            case wire.Add():
                self._add(client, message)
            case wire.Abort(request_ids):
                mine = [i for i in request_ids if self._owners.get(i) == client]
                self._engine.abort(mine, self._clock())
            case wire.Hello(pid):
                self._greeted[client] = pid
            case wire.Inspect(number, request_id, steps):
                self._send(client, wire.Inspected(number, *self._engine.inspect(request_id, steps, self._clock())))
            case wire.Shutdown():
                self._draining = self._stopped = True

    def _add(self, client: bytes, message: wire.Add) -> None:
        request = message.request
        request_id = request.request_id
        try:
            if self._draining:
                raise OverloadedError("the engine is shutting down", retry_after=30, code="shutting_down")
            if request_id in self._owners:
                raise RequestError(f"request_id {request_id!r} is already in use", code="duplicate_request_id")
            self._engine.add(request, self._clock(), replayed=message.replayed)
        except RequestError as error:
            retry_after = error.retry_after if isinstance(error, OverloadedError) else None
            self._send(client, wire.Refused(request_id, error.message, error.param, error.code, retry_after))
            return
        self._owners[request_id] = client
        self._send(client, wire.Accepted(request_id))

    def _step(self) -> None:
        self._publish()
        self._heartbeat.step_began(time.monotonic())
        deltas = self._engine.step(self._clock)
        self._heartbeat.step_ended()
        if self._events is not None:
            self._events.publish(self._engine.take_events(), time.time())
        # Before the outputs: whoever has read the last of them finds stats that know of it.
        self._publish(at_rest=not self._engine.has_work)
        self._deliver(deltas)

    def _publish(self, *, at_rest: bool = False) -> None:
        """Send every client the engine's stats, so that none has to ask and wait for a step under way."""
        now = self._clock()
        if at_rest or now - self._published >= _PUBLISH_SECONDS:
            self._published = now
            self._forget_gone()
            stats = self._engine.stats()
            for client in self._greeted:
                self._send(client, stats)

    def _forget_gone(self) -> None:
        """Abort what clients asked for whose process has ended without a word."""
        for client in [client for client, pid in self._greeted.items() if pid and not _lives(pid)]:
            del self._greeted[client]
            theirs = [request_id for request_id, owner in self._owners.items() if owner == client]
            log.warning("an API process is gone; its requests are aborted: %d", len(theirs))
            self._engine.abort(theirs, self._clock())

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        """Send each client its deltas, all of one step in one message."""
        by_client: dict[bytes, list[OutputDelta]] = {}
        for delta in deltas:
            if delta.finish_reason is None:
                client = self._owners.get(delta.request_id)
            else:
                client = self._owners.pop(delta.request_id, None)
            if client is not None:
                by_client.setdefault(client, []).append(delta)
        if by_client:
            self._heartbeat.brought()
        for client, theirs in by_client.items():
            self._send(client, wire.Outputs(theirs))

    def _send(self, client: bytes, message: wire.FromEngine) -> None:
        self._socket.send_multipart((client, wire.encode(message)))


def bind(context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> zmq.Socket[bytes]:
    """The engine's socket in folder, for its user alone. Queues are unbounded, since a dropped message would be a
    lost token; what they hold is bounded by what was accepted."""
    socket = context.socket(zmq.ROUTER)
    socket.set_hwm(0)
    path = folder / SOCKET_NAME
    socket.bind(f"ipc://{path}")
    path.chmod(0o600)
    return socket


def report_failure(folder: Path, message: str) -> None:
    """Leave for whoever started this process why there is no engine."""
    unfinished = folder / f"{FAILURE_NAME}.tmp"
    unfinished.write_text(message, encoding="utf-8")
    unfinished.rename(folder / FAILURE_NAME)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""Supervisor: several API processes over one engine, watched by a process that loads neither. It starts again what
ends, the engine as well as an API process, hands signals on, and leaves nothing behind.

It holds every listening socket too, so that connections which wait for an API process outlive it
(docs/decisions/api-processes.md).
"""

import contextlib
import logging
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from types import FrameType

import msgspec

from headrace.core.config import Config
from headrace.core.errors import EngineDeadError
from headrace.engine.attempts import Attempts, how
from headrace.engine.heartbeat import Pulse
from headrace.engine.meeting_folder import HEARTBEAT_NAME
from headrace.engine_process import SETTINGS_AT_FAULT, EngineProcess
from headrace.shared_engine import EngineState

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_NOTICE_SECONDS = 0.5
"""Before an engine is started again: the API processes have seen the end of the last by then."""
_LENGTH_BYTES = 8


class ApiStart(msgspec.Struct, frozen=True):
    """What an API process reads from its standard input. After it the pipe stays open: its end is the supervisor's. The
    listeners are file descriptors that it inherits."""

    config: Config
    shared: str
    index: int
    before: int
    listener: int
    admin: int | None


class _Api:
    """One API process, which may be started several times."""

    def __init__(self, start: ApiStart, listener: socket.socket) -> None:
        self.start = start
        self.listener = listener
        self.attempts = Attempts()
        self.process = self._spawn(start)
        self.started = time.monotonic()
        self.due: float | None = None
        """When to start it again, if it has ended."""

    def _spawn(self, start: ApiStart) -> subprocess.Popen[bytes]:
        listeners = [fd for fd in (start.listener, start.admin) if fd is not None]
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.api_child"],
            stdin=subprocess.PIPE,
            pass_fds=listeners,
            start_new_session=True,
        )
        assert process.stdin is not None
        body = msgspec.msgpack.encode(start)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(len(body).to_bytes(_LENGTH_BYTES) + body)
            process.stdin.flush()
        return process

    def restart(self) -> None:
        self._close_pipe()
        self.start = msgspec.structs.replace(self.start, before=self.start.before + 1)
        self.process = self._spawn(self.start)
        self.started, self.due = time.monotonic(), None

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


class Supervisor:
    """engine is being started. listeners: one for each API process; admin, the operator's, goes to the first."""

    def __init__(
        self, config: Config, engine: EngineProcess, listeners: list[socket.socket], admin: socket.socket | None
    ) -> None:
        self._engine = engine
        self._state = EngineState(engine.shared)
        self._attempts = Attempts()
        self._engine_started = time.monotonic()
        self._engine_due: float | None = None
        self._given_up = False
        self._pulse: Pulse | None = None
        self._draining = False
        self._status = 0
        admins = [None if admin is None else admin.fileno()] + [None] * (config.api_server_count - 1)
        self._apis = [
            _Api(ApiStart(config, str(engine.shared), index, 0, listener.fileno(), admin_fd), listener)
            for index, (listener, admin_fd) in enumerate(zip(listeners, admins, strict=True))
        ]

    def run(self) -> int:
        """Until signals have ended all; returns the exit status. Raises EngineDeadError with the reason if the engine
        could not start."""
        signals: deque[int] = deque()
        try:
            with _signals_into(signals) as wake:
                while self._apis:
                    if not signals:
                        select.select([wake], [], [], self._wait())
                        with contextlib.suppress(BlockingIOError):
                            wake.recv(64)
                    while signals:
                        self._hand_on(signals.popleft())
                    self._look_at_engine()
                    for api in tuple(self._apis):
                        self._look_at(api)
            return self._status
        finally:
            for api in self._apis:
                api.end()
            self._engine.terminate()

    def _wait(self) -> float:
        """Seconds until something is to be done; sooner if a child ends."""
        dues = [due for due in (self._engine_due, *(api.due for api in self._apis)) if due is not None]
        return max(0.0, min([_LOOK_SECONDS, *(due - time.monotonic() for due in dues)]))

    def _hand_on(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        self._draining = True
        for api in self._apis:
            api.process.send_signal(signal.SIGTERM)

    def _look_at(self, api: _Api) -> None:
        status = api.process.poll()
        if status is None:
            return
        now = time.monotonic()
        if self._draining or self._status:
            api.end()
            self._apis.remove(api)
            # Those that still drain take its connections, and say so.
            if all(api.listener is not other.listener for other in self._apis):
                api.listener.close()
        elif api.due is not None:
            if now >= api.due:
                api.restart()
        elif status == SETTINGS_AT_FAULT or not api.attempts.ended(now - api.started):
            # It has said what is wrong, and so would the others.
            self._status = status if status > 0 else 1
            for other in self._apis:
                other.process.terminate()
        else:
            api.due = now + api.attempts.pause
            log.error("API process %d %s; starting it again", api.start.index, how(status))

    def _look_at_engine(self) -> None:
        now = time.monotonic()
        if self._engine_due is not None:
            if now >= self._engine_due:
                self._engine_due = None
                self._restart_engine()
            return
        if self._given_up:
            return
        status = self._engine.exit_status()
        if status is None:
            self._see_it_move(now)
        else:
            self._engine_ended(status, now)

    def _see_it_move(self, now: float) -> None:
        if self._pulse is None and (file := self._engine.folder / HEARTBEAT_NAME).exists() and file.stat().st_size:
            self._pulse = Pulse(file)
            self._engine_started = now
        if self._pulse is not None and self._pulse.hangs(now):
            log.error("the engine process hangs: killed")
            self._engine.kill()

    def _engine_ended(self, status: int, now: float) -> None:
        ended, _, _ = self._state.read()
        reason = f"the engine process {how(status)}"
        failure = self._engine.failure()
        if self._pulse is None and ended == 0 and not self._draining:
            raise EngineDeadError(failure or reason)
        if self._pulse is not None and self._pulse.brought:
            self._attempts.brought()
        lived = 0.0 if self._pulse is None else now - self._engine_started
        self._given_up = failure is not None or not self._attempts.ended(lived)
        self._pulse = None
        self._state.write(ended + 1, status, given_up=self._given_up)
        if self._given_up:
            log.error("%s: it is not started again", failure or self._attempts.told(reason))
        else:
            self._engine_due = now + max(_NOTICE_SECONDS, self._attempts.pause)
            log.error("%s; starting it again", reason)

    def _restart_engine(self) -> None:
        try:
            self._engine.restart()
        except OSError as error:
            log.error("the engine cannot be started again: %s", error)
            ended, status, _ = self._state.read()
            self._given_up = True
            self._state.write(ended + 1, status, given_up=True)


@contextlib.contextmanager
def _signals_into(signals: deque[int]) -> Iterator[socket.socket]:
    """Let signals wait in a queue; the socket is readable when there are some."""
    wake, waker = socket.socketpair()
    wake.setblocking(False)
    waker.setblocking(False)

    def keep(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, keep) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)}
    try:
        yield wake
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        wake.close()
        waker.close()

"""EngineProcess: an engine in a process of its own, seen from the one that starts it. It owns the private folder that
their sockets are in, and the child's end. Only light things are imported here, so that the child starts to load soon.
"""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from headrace import __version__, engine_ahead
from headrace.core.config import Config
from headrace.core.errors import MachineError
from headrace.engine.meeting_folder import FAILURE_NAME, engine_folder

SETTINGS_AT_FAULT = 2
"""Exit status of the child if what it was given cannot be run, as against a machine or an engine that failed."""

_LONGEST_SOCKET_PATH = 100
_SOCKET_NAME_BYTES = 20


class Start(msgspec.Struct, frozen=True):
    """What the child reads from its standard input: never from arguments, which every user of a machine can see."""

    config: Config
    folder: str
    parent: int
    package: str


class EngineProcess:
    """Starts at once. config comes from locate_model(). The child is not in the terminal's process group, so Ctrl-C is
    for the parent alone; it ends itself if the parent dies."""

    def __init__(self, config: Config) -> None:
        self.shared = _private_folder()
        self._starts = 0
        self._package = installed_package()
        # The engine knows tenants, not their keys.
        self._config = dataclasses.replace(config, api_key=None, api_key_file=None)
        self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.folder.mkdir(mode=0o700)
        process = engine_ahead.take()
        assert process.stdin is not None
        start = Start(self._config, str(self.folder), os.getpid(), self._package)
        # One that ends before it has read this says why by its status.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(msgspec.msgpack.encode(start))
        return process

    @property
    def folder(self) -> Path:
        """Of the present engine; shared is the same for all that follow each other."""
        return engine_folder(self.shared, self._starts)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it lives; negative if a signal ended it."""
        return self._process.poll()

    def failure(self) -> str | None:
        """What it left to say of why it could not start."""
        file = self.folder / FAILURE_NAME
        return file.read_text(encoding="utf-8") if file.exists() else None

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        """Start it again, after it has ended. Raises OSError."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._starts += 1
        self._process = self._spawn()

    def close(self, *, wait_seconds: float = 5.0) -> None:
        """Wait until it has ended, or end it; then remove the folder."""
        try:
            self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.shared, ignore_errors=True)


def _private_folder() -> Path:
    """A new folder (mode 0700) whose path is short enough for a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_PATH - _SOCKET_NAME_BYTES:
        folder.rmdir()
        raise MachineError(f"the folder for temporary files is too long a path for a socket: {folder}; set TMPDIR")
    return folder


def installed_package() -> str:
    """Which installation of this package is on the disk now: a process that starts later must be of the same one."""
    try:
        written = Path(__file__).stat().st_mtime_ns
    except FileNotFoundError:
        return "none"
    return f"{__version__} {written}"

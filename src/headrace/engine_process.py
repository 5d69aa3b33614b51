"""EngineProcess: an engine in a process of its own, seen from the one that starts it. It owns the private folder of
their socket, and the child's end. Only light things are imported here, so that the child starts to load at once.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from headrace.core.config import Config
from headrace.core.errors import MachineError
from headrace.engine.wire import SOCKET_NAME

SETTINGS_AT_FAULT = 2
"""Exit status of the child if what it was given cannot be run, as against a machine or an engine that failed."""

_LONGEST_SOCKET_PATH = 100
_SOCKET_NAME_BYTES = 20


class Start(msgspec.Struct, frozen=True):
    """What the child reads from its standard input: never from arguments, which every user of a machine can see."""

    config: Config
    folder: str
    parent: int


class EngineProcess:
    """Starts at once. config comes from locate_model(). The child leaves the terminal's process group, so Ctrl-C is
    for the parent alone; it ends itself if the parent dies."""

    def __init__(self, config: Config) -> None:
        self.folder = _private_folder()
        # The engine knows tenants, not their keys.
        known = dataclasses.replace(config, api_key=None, api_key_file=None)
        self._start = msgspec.msgpack.encode(Start(known, str(self.folder), os.getpid()))
        self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.engine_child"], stdin=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(self._start)
        return process

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it lives; negative if a signal ended it."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        """Start it again in the same folder, after it has ended. Raises OSError."""
        (self.folder / SOCKET_NAME).unlink(missing_ok=True)
        self._process = self._spawn()

    def close(self, *, wait_seconds: float = 5.0) -> None:
        """Wait until it has ended, or end it; then remove the folder."""
        try:
            self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _private_folder() -> Path:
    """A new folder (mode 0700) whose path is short enough for a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_PATH - _SOCKET_NAME_BYTES:
        folder.rmdir()
        raise MachineError(f"the folder for temporary files is too long a path for a socket: {folder}; set TMPDIR")
    return folder

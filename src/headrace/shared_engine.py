"""SharedEngine: the one engine of several API processes, as each of them sees it. Their supervisor alone starts it;
what became of it stands in a few numbers of a shared file, which they read without asking.
"""

import mmap
import os
import struct
from pathlib import Path

from headrace.engine.meeting_folder import engine_folder

_STATE_NAME = "state"
_STATE = struct.Struct("=qqq")


class EngineState:
    """ended: how many engines have ended so far; status: how the last of them did; given_up: whether no other is
    started. The supervisor writes it, in the folder that all processes share."""

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder / _STATE_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, _STATE.size)
        self._numbers = mmap.mmap(descriptor, _STATE.size)
        os.close(descriptor)

    def read(self) -> tuple[int, int, bool]:
        ended, status, given_up = _STATE.unpack_from(self._numbers)
        return ended, status, bool(given_up)

    def write(self, ended: int, status: int, *, given_up: bool) -> None:
        _STATE.pack_into(self._numbers, 0, ended, status, given_up)


class SharedEngine:
    """An EngineHandle. Each engine has a folder of its own in the shared one, by how many were before it, so nothing
    that was meant for one reaches the next."""

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._state = EngineState(shared)
        self._before = self._state.read()[0]

    @property
    def folder(self) -> Path:
        return engine_folder(self._shared, self._before)

    def exit_status(self) -> int | None:
        ended, status, _ = self._state.read()
        return status if ended > self._before else None

    def kill(self) -> None:
        """The supervisor sees itself that it hangs."""

    def restart(self) -> None:
        """Turn to the next one."""
        ended, _, given_up = self._state.read()
        if given_up:
            raise OSError("it ended too often, with nothing brought in between")
        self._before = ended

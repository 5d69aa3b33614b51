"""Heartbeat: a few numbers in a shared file by which another process sees that an engine is alive and moves. The
engine's side beats on a thread of its own, so a long step is not taken for a stopped process; the reader's side
never waits and works however busy its own event loop is. Times are time.monotonic(), one clock for the machine.
"""

import mmap
import os
import struct
import threading
import time
from pathlib import Path

BEAT_SECONDS = 0.25
SILENT_SECONDS = 3.0
"""Without a beat for this long, the process is taken for stopped."""
STALLED_SECONDS = 120.0
"""A single step that takes longer than this is taken for stuck; a process without progress for so long is ended."""

_BEAT, _STEP_BEGAN, _BROUGHT = 0, 8, 16
_SIZE = 24
_TIME = struct.Struct("=d")


class Heartbeat:
    """The engine's side. If `parent` is given, the process ends itself once that is no longer its parent: an engine
    never outlives whoever it computes for."""

    def __init__(self, path: Path, *, parent: int | None = None) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, _SIZE)
        self._numbers = mmap.mmap(descriptor, _SIZE)
        os.close(descriptor)
        self._parent = parent
        self._ended = threading.Event()
        # The file may be an earlier engine's, which ended in the middle of a step.
        self.step_ended()
        _TIME.pack_into(self._numbers, _BROUGHT, 0.0)
        self._beat()
        self._thread = threading.Thread(target=self._run, name="headrace-heartbeat", daemon=True)
        self._thread.start()

    def step_began(self, now: float) -> None:
        _TIME.pack_into(self._numbers, _STEP_BEGAN, now)

    def step_ended(self) -> None:
        _TIME.pack_into(self._numbers, _STEP_BEGAN, 0.0)

    def brought(self) -> None:
        """Something came of a step."""
        _TIME.pack_into(self._numbers, _BROUGHT, 1.0)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._numbers.close()

    def _beat(self) -> None:
        _TIME.pack_into(self._numbers, _BEAT, time.monotonic())

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._beat()
            if self._parent is not None and os.getppid() != self._parent:
                os._exit(1)


class Pulse:
    """The other side: reads the beats of an engine that has started."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        self._numbers = mmap.mmap(descriptor, _SIZE, prot=mmap.PROT_READ)
        os.close(descriptor)

    def check(self, now: float) -> tuple[bool, str]:
        """Whether the engine makes progress, and the reason if not."""
        silent, stepping = self._silent_and_stepping(now)
        if silent > SILENT_SECONDS:
            return False, f"the engine process has given no sign of life for {silent:.0f} s"
        if stepping > STALLED_SECONDS:
            return False, f"the engine's current step has taken {stepping:.0f} s"
        return True, ""

    def hangs(self, now: float) -> bool:
        """Whether it has been without progress for so long that it is not waited for any more."""
        return max(self._silent_and_stepping(now)) > STALLED_SECONDS

    @property
    def brought(self) -> bool:
        """Whether anything came of its steps."""
        return bool(_TIME.unpack_from(self._numbers, _BROUGHT)[0])

    def _silent_and_stepping(self, now: float) -> tuple[float, float]:
        """Seconds since the last beat, and since the current step began (0: there is none)."""
        beat: float = _TIME.unpack_from(self._numbers, _BEAT)[0]
        began: float = _TIME.unpack_from(self._numbers, _STEP_BEGAN)[0]
        return now - beat if beat else 0.0, now - began if began else 0.0

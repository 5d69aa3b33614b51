"""TrialGate: while one of several API processes tries its suspects one at a time (engine/replay.py), the others hand
the engine nothing, so that its next end is not laid on an innocent one. A file lock ends with the process that has it.
"""

import fcntl
import os
from pathlib import Path


class TrialGate:
    """One process's side of the gate. path: the lock file, the same for all."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._held = False

    def pass_through(self, *, trying: bool) -> bool:
        """Whether this process may hand requests to the engine now. trying: it has suspects, and so needs the gate for
        itself until it says that it has none."""
        if self._held and not trying:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._held = False
        if self._held:
            return True
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_EX if trying else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if trying:
            self._held = True
        else:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        os.close(self._descriptor)

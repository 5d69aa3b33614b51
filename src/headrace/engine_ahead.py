"""An engine's process that loads while its settings are still being read: what it imports does not depend on them. It
waits for them at its standard input (engine_process.py) and ends if none come. Only light things are imported here.
"""

import subprocess
import sys

_waiting: list[subprocess.Popen[bytes]] = []


def start_ahead() -> None:
    """Have one ready for the next take()."""
    _waiting.append(_start())


def take() -> subprocess.Popen[bytes]:
    """The one that was started ahead, or a new one. It leaves the terminal's process group."""
    return _waiting.pop() if _waiting else _start()


def drop() -> None:
    """End the one that nobody took."""
    while _waiting:
        process = _waiting.pop()
        process.kill()
        process.communicate()


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace.engine_child"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

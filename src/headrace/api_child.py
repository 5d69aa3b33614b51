"""One API process of several, which supervisor.py starts: it reads what is wanted from its standard input, and
serves on a socket that it inherits. It ends with its supervisor.
"""

import os
import socket
import sys
import threading
from pathlib import Path

import msgspec

from headrace.api_process import Place, run
from headrace.core.errors import ConfigError, EngineDeadError, HeadraceError, ModelError
from headrace.engine_process import SETTINGS_AT_FAULT
from headrace.shared_engine import SharedEngine
from headrace.supervisor import ApiStart

_STANDARD_INPUT = 0


def _end_with_supervisor() -> None:
    """The pipe holds nothing more: what comes is its end, once nobody has the other side."""
    os.read(_STANDARD_INPUT, 1)
    os._exit(1)


def main() -> int:
    """Returns the exit status."""
    length = int.from_bytes(sys.stdin.buffer.read(8))
    start = msgspec.msgpack.decode(sys.stdin.buffer.read(length), type=ApiStart)
    threading.Thread(target=_end_with_supervisor, name="headrace-supervisor", daemon=True).start()
    shared = Path(start.shared)
    listener = socket.socket(fileno=start.listener)
    admin = None if start.admin is None else socket.socket(fileno=start.admin)
    place = Place(start.index, start.config.api_server_count, start.before, shared)
    try:
        return run(start.config, SharedEngine(shared), listener, admin, place)
    except EngineDeadError:
        # The supervisor says why there is no engine.
        return 1
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return SETTINGS_AT_FAULT if isinstance(error, ConfigError | ModelError) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The private folder (mode 0700) in which an engine and its API processes meet: names of what lies there. Nothing else
is imported here, so that whoever starts an engine need not wait for what speaks to it.
"""

from pathlib import Path

SOCKET_NAME = "engine.sock"
HEARTBEAT_NAME = "heartbeat"
FAILURE_NAME = "failure"
"""Why an engine could not start, for the operator."""


def engine_folder(shared: Path, before: int) -> Path:
    """Where the engine is that has so many before it."""
    return shared / str(before)

"""The cache folder: what was fetched or converted once and is kept. Files appear whole or not at all (written
aside, then renamed), and a lock file keeps two processes from making the same one.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import MachineError


def cache_folder() -> Path:
    """HEADRACE_CACHE, or ~/.cache/headrace. It may not exist yet."""
    given = os.environ.get("HEADRACE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "headrace"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path`.lock, waiting for whoever has it. The lock ends with the process, however it ends."""
    with _writable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(path.name + ".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """A folder on the same file system as `beside`, removed at the end: what is renamed out of it stays."""
    with _writable(beside.parent):
        beside.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".incomplete-", dir=beside.parent)
    with folder as name:
        yield Path(name)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that readers see all of it or none."""
    with temporary_folder(path) as folder, _writable(path.parent):
        part = folder / path.name
        part.write_bytes(data)
        os.replace(part, path)


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"cannot write to the cache folder {folder}: {error}; set HEADRACE_CACHE to a folder that can be written"
        ) from error

"""Packed copies: weights as kernels read them, kept in the cache folder by earlier starts (ops/packed_file.py), each in
a folder named by its key. This file decides where they lie and which must go; it reads and writes none.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.models.cache import cache_folder, temporary_folder

WEIGHTS, ORIGIN = "weights", "origin"
"""Files of a copy: the matrices, and the path of the model they were made of."""

_ABANDONED_SECONDS = 3600.0
_KEPT_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class PackedCopy:
    """origin: path of the model. size in bytes on disk."""

    key: str
    path: Path
    origin: str
    size: int


def packed_folder() -> Path:
    return cache_folder() / "packed"


def packed_copies() -> list[PackedCopy]:
    """All there are, the one that was longest not used first."""
    found = []
    for folder in packed_folder().glob("[!.]*"):
        with contextlib.suppress(OSError):  # it may go while we look
            size, used = (folder / WEIGHTS).stat().st_size, folder.stat().st_mtime_ns
            found.append((used, PackedCopy(folder.name, folder, (folder / ORIGIN).read_text("utf-8"), size)))
    return [copy for _, copy in sorted(found, key=lambda pair: (pair[0], pair[1].key))]


def find_packed(key: str) -> Path | None:
    """The file of matrices kept under `key`, now the last to have been used; None if there is none."""
    folder = packed_folder() / key
    if not (folder / WEIGHTS).is_file():
        return None
    with contextlib.suppress(OSError):  # a cache that can only be read
        os.utime(folder)
    return folder / WEIGHTS


def forget_packed(key: str) -> None:
    """Remove a copy, so far as it can be."""
    shutil.rmtree(packed_folder() / key, ignore_errors=True)


@contextlib.contextmanager
def new_packed(limit: int) -> Iterator[tuple[Path, int]]:
    """A file to write a copy into, which goes at the end unless keep_packed() took it, and the bytes it may have: the
    limit, or less if the disk would be left too full. Raises MachineError if the cache folder cannot be written."""
    place = packed_folder() / "new"
    _sweep()
    with temporary_folder(place) as folder:
        spare = shutil.disk_usage(folder).free - _KEPT_FREE_BYTES
        yield folder / WEIGHTS, max(0, min(limit, spare))


def keep_packed(file: Path, key: str, *, origin: str, limit: int) -> None:
    """Keep a file of new_packed() under `key`. Others go, those that were longest not used first, until all copies
    together take no more than `limit` bytes."""
    room = limit - file.stat().st_size
    kept = packed_copies()
    taken = sum(copy.size for copy in kept)
    for copy in kept:
        if taken > room:
            forget_packed(copy.key)
            taken -= copy.size
    whole = file.parent / "whole"
    with contextlib.suppress(OSError):  # a full disk, or another process kept the same one first
        whole.mkdir()
        (whole / ORIGIN).write_text(origin, encoding="utf-8")
        file.rename(whole / WEIGHTS)
        whole.rename(packed_folder() / key)


def _sweep() -> None:
    """Remove what processes that were killed left half written."""
    for folder in packed_folder().glob(".incomplete-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

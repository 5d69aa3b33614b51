"""A file of packed matrices: a model's weights as its kernels read them, so that a later start maps them as they are.
PackedWriter writes it beside the packing, map_packed() maps it. The parts of all matrices come first and an index
last, with a digest of every part and of itself: a file that is torn, or changed anywhere, is recognized and not used.

Layout: parts, each from a multiple of 64 bytes on; the index (msgpack); its length, its digest, the magic.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.ops.content_digest import content_digest

Bytes = npt.NDArray[np.uint8]

_MAGIC = b"HRPACK01"
_TAIL = struct.Struct("<Q16s8s")
_ALIGN = 64
_CHUNK = 2 << 20
_READ_AGAIN_BELOW = 512 << 20
_MOST_THREADS = 4


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Bytes begin to end of the file."""

    begin: int
    end: int
    digest: bytes


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One matrix: what its kernels must know of it, and its parts (data, scale, minimum)."""

    name: str
    scheme: str
    n: int
    k: int
    group: int
    half_scales: bool
    parts: tuple[Part, ...]


class _Index(msgspec.Struct, frozen=True):
    key: str
    notes: list[str]
    entries: list[Entry]


class PackedWriter:
    """Writes what is added on a thread of its own, up to `limit` bytes. What is added must stay as it is until
    finish(). `whole`, after finish(): whether the file holds all of it. A context: at its end the file is closed."""

    def __init__(self, path: Path, *, key: str, limit: int) -> None:
        self.whole = False
        self._key = key
        self._file = _ChunkedFile(path, limit)
        self._thread = ThreadPoolExecutor(1)
        self._entries: list[Future[Entry | None]] = []

    def __enter__(self) -> PackedWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._file.close()

    def add(self, name: str, matrix: Any) -> None:
        """matrix: a PackedMatrix of the kernels."""
        self._entries.append(self._thread.submit(self._write, name, matrix))

    def finish(self, notes: list[str]) -> None:
        """Wait until all is written. A disk that is full or fails leaves a file that is not whole, and no more."""
        self._thread.shutdown()
        entries = [entry for future in self._entries if (entry := future.result()) is not None]
        if len(entries) == len(self._entries):
            index = msgspec.msgpack.encode(_Index(self._key, notes, entries))
            with contextlib.suppress(OSError):
                self._file.write(index + _TAIL.pack(len(index), _digest(index), _MAGIC))
                self._file.flush()
                self.whole = True
            if self.whole:
                self._file.read_again()

    def _write(self, name: str, m: Any) -> Entry | None:
        """None if there is no room for it."""
        try:
            parts = tuple(self._write_part(part) for part in m.parts)
        except OSError:
            return None
        return Entry(name, m.scheme, m.n, m.k, m.group, m.half_scales, parts)

    def _write_part(self, data: Bytes) -> Part:
        begin = -(-self._file.size // _ALIGN) * _ALIGN
        self._file.write(bytes(begin - self._file.size))
        self._file.write(data.data)
        return Part(begin, self._file.size, content_digest("", data))


class _ChunkedFile:
    """A new file, written in whole chunks: so written, file systems may keep it on huge pages, which the kernels then
    read as fast as memory of their own (measured: 6 % slower otherwise). Raises OSError beyond `limit` bytes."""

    def __init__(self, path: Path, limit: int) -> None:
        self.size = 0
        self._limit = limit
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._chunk, self._used = bytearray(_CHUNK), 0

    def write(self, data: bytes | memoryview) -> None:
        if self.size + len(data) > self._limit:
            raise OSError(f"{self.size + len(data)} bytes are more than the {self._limit} allowed")
        taken = 0
        while taken < len(data):
            count = min(_CHUNK - self._used, len(data) - taken)
            self._chunk[self._used : self._used + count] = data[taken : taken + count]
            self._used += count
            taken += count
            if self._used == _CHUNK:
                self.flush()
        self.size += len(data)

    def flush(self) -> None:
        rest = memoryview(self._chunk)[: self._used]
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._used = 0

    def read_again(self) -> None:
        """Have the system forget the pages as they were written and read them into huge ones, which it does for what
        is mapped so, and keeps for the next start. For files that are read in a moment."""
        if self.size >= _READ_AGAIN_BELOW or not hasattr(os, "posix_fadvise"):
            return
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            with open(self._descriptor, "rb", closefd=False) as file:
                _map(file, self.size)[:: mmap.PAGESIZE].max()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def map_packed(
    path: Path,
    *,
    key: str,
    names: Collection[str],
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[tuple[Entry, list[Bytes]]], list[str]] | None:
    """Every matrix and its parts, mapped read-only, and the notes; None unless the file is whole and holds what `key`
    stands for under these names. Every byte is read once,
    on a few of so many threads. Raises OSError if the file cannot be read."""
    with path.open("rb") as file:
        index, end = _read_index(file)
        if index is None or index.key != key or {entry.name for entry in index.entries} != set(names):
            return None
        if any(not _lies_within(part, end) for entry in index.entries for part in entry.parts):
            return None
        memory = _map(file, end)

    def parts(entry: Entry) -> list[Bytes] | None:
        views = [memory[part.begin : part.end] for part in entry.parts]
        whole = all(content_digest("", v) == part.digest for part, v in zip(entry.parts, views, strict=True))
        return views if whole else None

    found = []
    with ThreadPoolExecutor(min(_MOST_THREADS, threads)) as pool:
        for entry, views in zip(index.entries, pool.map(parts, index.entries), strict=True):
            if views is None:
                return None
            found.append((entry, views))
            if progress is not None:
                progress(len(found), len(index.entries))
    return found, index.notes


def _read_index(file: BinaryIO) -> tuple[_Index | None, int]:
    """The index, None if there is no whole one, and where it begins."""
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL.size:
        return None, 0
    file.seek(size - _TAIL.size)
    length, digest, magic = _TAIL.unpack(file.read(_TAIL.size))
    begin = size - _TAIL.size - length
    if magic != _MAGIC or begin < 0:
        return None, 0
    file.seek(begin)
    data = file.read(length)
    if _digest(data) != digest:
        return None, 0
    try:
        return msgspec.msgpack.decode(data, type=_Index), begin
    except msgspec.DecodeError:
        return None, 0


def _lies_within(part: Part, end: int) -> bool:
    return 0 <= part.begin <= part.end <= end and part.begin % _ALIGN == 0


def _map(file: BinaryIO, size: int) -> Bytes:
    mapped = mmap.mmap(file.fileno(), max(size, 1), access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # not every kernel has them for files
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def _digest(index: bytes) -> bytes:
    return hashlib.blake2b(index, digest_size=16).digest()

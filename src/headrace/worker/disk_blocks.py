"""DiskBlocks keeps blocks of the KV cache in a folder, one file each, and reads and writes them on a thread of its own.
A file is named by its block's name and group, so it is found again after a restart; its head says whose it is, how
long and which checksum, and a file that does not agree with that is removed, never believed.
"""

import contextlib
import logging
import os
import queue
import re
import secrets
import stat
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.core.disk import DiskDelete, DiskRead, DiskResult, DiskTransfer, DiskWrite, StoredBlock
from headrace.core.errors import ConfigError

Blocks = npt.NDArray[np.uint8]
log = logging.getLogger(__name__)

_HEAD = struct.Struct("<8s16sIQI")
"""Magic, name, group, bytes that follow, their CRC-32."""
HEAD_BYTES = _HEAD.size
_MAGIC = b"HRKV0001"
_FILE = re.compile(r"([0-9a-f]{32})-(\d{1,3})\.kv")
_UNFINISHED = re.compile(r"[0-9a-f]{32}-\d{1,3}(\.[0-9a-f]{8})?\.tmp")
_ABANDONED_SECONDS = 60.0
"""Writing a block takes milliseconds: a file that is unfinished for so long is nobody's, and others may be another
engine's, here or on another machine."""


class DiskBlocks:
    """host: the host's blocks of each group, uint8 [blocks, bytes]."""

    def __init__(self, folder: Path, host: list[Blocks]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._stored = _scan(folder)
        except OSError as error:
            raise ConfigError(
                f"kv_offloading_dir ({folder}) cannot be used: {error.strerror or error}", field="kv_offloading_dir"
            ) from error
        self._folder = folder
        self._host = host
        # Other engines may write the same block in the same folder.
        self._unfinished = f".{secrets.token_hex(4)}.tmp"
        self._results: queue.SimpleQueue[DiskResult] = queue.SimpleQueue()
        self._thread = ThreadPoolExecutor(1, "headrace-disk")
        self._complained = False

    def stored(self) -> list[StoredBlock]:
        return self._stored

    def begin(self, transfers: tuple[DiskTransfer, ...]) -> None:
        """Carry these out in order, after all that were begun before."""
        for one in transfers:
            self._thread.submit(self._carry_out, one)

    def results(self, wait_s: float) -> list[DiskResult]:
        ended = []
        with contextlib.suppress(queue.Empty):
            if wait_s > 0:
                ended.append(self._results.get(timeout=wait_s))
            while True:
                ended.append(self._results.get_nowait())
        return ended

    def close(self) -> None:
        """Wait for what is under way."""
        self._thread.shutdown()

    def _carry_out(self, one: DiskTransfer) -> None:
        path = self._folder / f"{one.name.hex()}-{one.group}.kv"
        ok = False
        try:
            if isinstance(one, DiskDelete):
                path.unlink(missing_ok=True)
            else:
                ok = self._write(path, one) if isinstance(one, DiskWrite) else self._read(path, one)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("blocks of the KV cache cannot be kept in %s: %s", self._folder, error)
        if not isinstance(one, DiskDelete):
            self._results.put(DiskResult(one.number, ok))

    def _write(self, path: Path, one: DiskWrite) -> bool:
        data = self._host[one.group][one.block]
        unfinished = path.with_suffix(self._unfinished)
        with unfinished.open("wb") as file:
            file.write(_HEAD.pack(_MAGIC, one.name, one.group, data.nbytes, zlib.crc32(data)))
            file.write(data)
        unfinished.replace(path)
        return True

    def _read(self, path: Path, one: DiskRead) -> bool:
        block = self._host[one.group][one.block]
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD.size)
                size = file.readinto(block)
                good = size == block.nbytes and not file.read(1)
        except FileNotFoundError:
            return False
        if good and head == _HEAD.pack(_MAGIC, one.name, one.group, block.nbytes, zlib.crc32(block)):
            os.utime(path)
            return True
        log.warning("removed %s, which was damaged", path)
        path.unlink(missing_ok=True)
        return False


def _scan(folder: Path) -> list[StoredBlock]:
    """What the folder holds, least recently used first; files that were left unfinished are removed. Only plain files
    count, and one that another engine removes meanwhile does not."""
    found = []
    for entry in os.scandir(folder):
        named = _FILE.fullmatch(entry.name)
        if named is not None:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    block = StoredBlock(bytes.fromhex(named[1]), int(named[2]), status.st_size)
                    found.append((status.st_mtime_ns, block))
        elif _UNFINISHED.fullmatch(entry.name):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_SECONDS:
                    Path(entry.path).unlink(missing_ok=True)
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]

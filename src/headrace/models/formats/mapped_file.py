"""Files of weights, mapped and never copied whole."""

import mmap
from pathlib import Path

from headrace.core.errors import ModelError


def map_file(path: Path) -> mmap.mmap:
    """Map a file read-only. Raises ModelError if it cannot be read or is empty."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error


def release_pages(file: mmap.mmap, begin: int, end: int) -> None:
    """Take pages that lie wholly in these bytes out of this process's memory."""
    begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    length = end // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if length > 0:
        file.madvise(mmap.MADV_DONTNEED, begin, length)

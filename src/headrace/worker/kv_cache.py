"""KVCache owns the memory of cached keys and values: one pool of blocks per KV group, and one more below it in the
host's memory where tiers are wanted. Pages are the system's to
give on first touch, so a pool costs what was used of it; huge pages are asked for, since attention walks it all.
"""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from headrace.core.batch import BlockCopies, CopyKind
from headrace.core.errors import MachineError
from headrace.core.kv_layout import KVLayout

Bytes = npt.NDArray[np.uint8]


class KVCache:
    """pools[g]: uint8 [num_blocks[g] * block_bytes of group g], page-aligned. host[g]: uint8 [host_blocks[g],
    block_bytes]; empty without tiers."""

    def __init__(
        self, layouts: tuple[KVLayout, ...], num_blocks: tuple[int, ...], host_blocks: tuple[int, ...] = ()
    ) -> None:
        sizes = [layout.block_bytes for layout in layouts]
        self.pools: list[Bytes] = [_pages(n * size) for n, size in zip(num_blocks, sizes, strict=True)]
        self.host: list[Bytes] = [
            _pages(n * size).reshape(n, size) for n, size in zip(host_blocks, sizes, strict=bool(host_blocks))
        ]
        self._blocks = [pool.reshape(-1, size) for pool, size in zip(self.pools, sizes, strict=True)]

    def copy(self, copies: BlockCopies) -> None:
        """Copy whole blocks, in order."""
        if not len(copies.kind):
            return
        columns = (copies.kind, copies.group, copies.source, copies.destination)
        for kind, group, source, destination in zip(*(column.tolist() for column in columns), strict=True):
            self.copy_one(kind, group, source, destination)

    def copy_one(self, kind: int, group: int, source: int, destination: int) -> None:
        origin = self.host if kind == CopyKind.UP else self._blocks
        target = self.host if kind == CopyKind.DOWN else self._blocks
        target[group][destination] = origin[group][source]


def _pages(size: int) -> Bytes:
    """Zero pages, private to this process. They are unmapped when the last array over them is gone."""
    try:
        pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MachineError(
            f"cannot reserve {size} bytes for the KV cache ({error}): set kv_cache_memory_bytes lower"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # A system built without huge pages refuses; small ones work as well.
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)[:size]

"""KVCache owns the memory of cached keys and values: one pool of blocks per KV group. Pages are the system's to
give on first touch, so a pool costs what was used of it; huge pages are asked for, since attention walks it all.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from headrace.core.batch import BlockCopies
from headrace.core.errors import MachineError
from headrace.core.kv_layout import KVLayout

Bytes = npt.NDArray[np.uint8]


class KVCache:
    """pools[g]: uint8 [num_blocks[g] * block_bytes of group g], page-aligned."""

    def __init__(self, layouts: tuple[KVLayout, ...], num_blocks: tuple[int, ...]) -> None:
        sizes = [n * layout.block_bytes for n, layout in zip(num_blocks, layouts, strict=True)]
        self.pools: list[Bytes] = [_pages(size) for size in sizes]
        self._blocks = [
            pool.reshape(n, layout.block_bytes) for pool, n, layout in zip(self.pools, num_blocks, layouts, strict=True)
        ]

    def copy(self, copies: BlockCopies) -> None:
        """Copy whole blocks, in order."""
        columns = (copies.group.tolist(), copies.source.tolist(), copies.destination.tolist())
        for group, source, destination in zip(*columns, strict=True):
            self._blocks[group][destination] = self._blocks[group][source]


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

"""A program's matrices as the CPU kernels read them: packed one after the other, each dropped as soon as it is packed,
so that memory never holds all weights twice; or mapped from a file that an earlier start kept (ops/packed_file.py).
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import ConfigError, MachineError
from headrace.ops.kernels import kernels as _kernels
from headrace.ops.matrix import Matrix
from headrace.ops.packed_file import PackedWriter, map_packed
from headrace.ops.program import Program

Progress = Callable[[int, int], None]


class CpuWeights:
    """packed: matrices by name; program.matrices is empty afterwards. pool: the threads that pack and compute."""

    def __init__(self, threads: int, cpus: Sequence[int] = ()) -> None:
        """No matrices yet. threads: the calling one included; the others stay on the cpus that follow the first, where
        any are given. ConfigError for threads that cannot be had, MachineError if the system refuses them."""
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, got {threads}", field="threads")
        self.threads = threads
        try:
            self.pool = _kernels.ThreadPool(threads, list(cpus))
        except RuntimeError as error:
            raise MachineError(f"threads={threads}: {error}") from None
        self.packed: dict[str, Any] = {}
        self.nbytes = 0
        """Bytes of all packed matrices."""

    def pack(self, program: Program, *, progress: Progress | None = None, keep: PackedWriter | None = None) -> None:
        """Take the program's matrices. progress is called with (matrices packed, matrices in all); keep is given each
        when it is packed."""
        store = _kernels.WeightStore()
        total = len(program.matrices)
        for name in list(program.matrices):
            packed = _pack(store, self.pool, program.matrices.pop(name))
            self.packed[name] = packed
            if keep is not None:
                keep.add(name, packed)
            if progress is not None:
                progress(len(self.packed), total)
        program.matrices.clear()
        self.nbytes = store.nbytes
        if keep is not None:
            keep.finish(program.notes)

    def map(self, program: Program, path: Path, *, key: str, progress: Progress | None = None) -> bool:
        """Take them from a file of packed matrices. False, and nothing is changed, if it is not whole or not for this
        program. Raises OSError if it cannot be read."""
        found = map_packed(path, key=key, names=set(program.matrices), threads=self.threads, progress=progress)
        if found is None:
            return False
        entries, notes = found
        try:
            packed = {
                e.name: _kernels.adopt(e.scheme, e.n, e.k, e.group, e.half_scales, *parts) for e, parts in entries
            }
        except (ValueError, TypeError):  # parts that do not fit each other
            return False
        self.packed = packed
        self.nbytes = sum(part.nbytes for _, parts in entries for part in parts)
        program.matrices.clear()
        program.notes[:] = notes
        return True


def _pack(store: Any, pool: Any, m: Matrix) -> Any:
    data, scale, minimum = (None if a is None else np.ascontiguousarray(a) for a in (m.data, m.scale, m.minimum))
    return store.pack(pool, m.scheme, m.n, m.k, m.group, data, scale, minimum)


@functools.cache
def packing_digest() -> str:
    """Stands for how this build packs: what it makes of a few numbers in every scheme, so that a file of matrices
    packed in another way is never taken for ours."""
    store, pool, (n, k, group) = _kernels.WeightStore(), _kernels.ThreadPool(1), (20, 64, 32)
    digest = hashlib.blake2b(_kernels.VERSION.encode(), digest_size=16)
    numbers = np.arange(n * k, dtype=np.float32).reshape(n, k)
    for scale in (numbers[:, : k // group], numbers[:, : k // group] / np.float32(3)):  # half holds the first exactly
        for matrix in (
            Matrix("f32", n, k, numbers),
            Matrix("bf16", n, k, numbers.astype(np.uint16)),
            Matrix("q8", n, k, numbers.astype(np.uint8).view(np.int8), group, scale),
            Matrix("q4", n, k, numbers.astype(np.uint8)[:, : k // 2].reshape(n, -1, 16), group, scale, -scale),
        ):
            for part in _pack(store, pool, matrix).parts:
                digest.update(part)
    return digest.hexdigest()

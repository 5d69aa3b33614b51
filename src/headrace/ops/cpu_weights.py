"""A program's matrices as the CPU kernels read them, packed one after the other; each is dropped as soon as it is
packed, so that memory never holds all weights twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import headrace._kernels as _kernels
from headrace.core.errors import ConfigError
from headrace.ops.matrix import Matrix
from headrace.ops.program import Program

Progress = Callable[[int, int], None]


class CpuWeights:
    """packed: matrices by name; program.matrices is empty afterwards. pool: the threads that pack and compute."""

    def __init__(self, program: Program, *, threads: int = 1, progress: Progress | None = None) -> None:
        """threads: the calling one included. progress is called with (matrices packed, matrices in all). ConfigError
        for threads that cannot be had."""
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, got {threads}", field="threads")
        self.threads = threads
        self.pool = _kernels.ThreadPool(threads)
        self._store = _kernels.WeightStore()
        self.packed: dict[str, Any] = {}
        total = len(program.matrices)
        for name in list(program.matrices):
            self.packed[name] = self._pack(program.matrices.pop(name))
            if progress is not None:
                progress(len(self.packed), total)
        program.matrices.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of all packed matrices."""
        return int(self._store.nbytes)

    def _pack(self, m: Matrix) -> Any:
        data, scale, minimum = (None if a is None else np.ascontiguousarray(a) for a in (m.data, m.scale, m.minimum))
        return self._store.pack(self.pool, m.scheme, m.n, m.k, m.group, data, scale, minimum)

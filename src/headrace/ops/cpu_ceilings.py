"""What this processor does at best, measured: the rates that kernels are held against (csrc/ceilings.cpp)."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware
from headrace.ops.kernels import kernels as _kernels

READ_BYTES = 128 << 20
"""More than caches hold, so that reading it is reading memory."""
_BARRIERS = 200
_PARTS = 8
"""It is read a part at a time, each long out of the caches when its turn comes again."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates of all threads together: int8 operations of dot products (a multiplication and an addition are two),
    float32 operations of fused multiply-adds, bytes read from memory. barrier_us: how long they take to wait for each
    other, which a step does several times a layer."""

    threads: int
    int8_per_s: float
    float32_per_s: float
    read_bytes_per_s: float
    barrier_us: float

    def of(self, machine: Hardware) -> Hardware:
        """The machine with these as its limits: what a plan needs to know of it."""
        peaks = (("int8", self.int8_per_s), ("fp32", self.float32_per_s))
        return replace(machine, bandwidth=self.read_bytes_per_s, peaks=peaks, host_memory_bytes=machine.memory_bytes)


def measure_ceilings(
    threads: int, isa: str = "auto", *, rounds: int = 100_000, read_bytes: int = READ_BYTES, tries: int = 100
) -> Ceilings:
    """The best of many tries, each a fraction of a millisecond long, so that some run undisturbed: what other
    programs take away is not this machine's limit. ConfigError for threads or isa that cannot be had."""
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}", field="threads")
    try:
        kernels = _kernels.Kernels(isa)
    except ValueError as error:
        raise ConfigError(str(error), field="isa") from None
    pool = _kernels.ThreadPool(threads)
    parts = itertools.cycle(np.ones((_PARTS, read_bytes // 4 // _PARTS), np.float32))
    return Ceilings(
        threads,
        int8_per_s=_best(lambda: _kernels.ceiling_int8(kernels, pool, rounds), tries),
        float32_per_s=_best(lambda: _kernels.ceiling_float(kernels, pool, rounds), tries),
        read_bytes_per_s=_best(lambda: _kernels.ceiling_read(kernels, pool, next(parts)), tries),
        barrier_us=1e6 / _best(lambda: _kernels.barriers(pool, _BARRIERS), tries),
    )


def _best(work: Callable[[], int], tries: int) -> float:
    best = 0.0
    for _ in range(tries):
        begin = time.perf_counter()
        done = work()
        best = max(best, done / (time.perf_counter() - begin))
    return best

"""ready_weights(): a program's matrices as the kernels read them, from the packed copy that an earlier start kept, or
packed now and kept for the next start. A copy that is missing, torn or refused by the disk costs time, nothing else.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from headrace import __version__
from headrace.core.errors import MachineError
from headrace.models.packed_copies import find_packed, forget_packed, keep_packed, new_packed
from headrace.ops.cpu_weights import CpuWeights, Progress, packing_digest
from headrace.ops.packed_file import PackedWriter
from headrace.ops.program import Program

_SMALLEST_BYTES = 32 * 2**20
"""Stored weights below this are packed sooner than a copy of them is found."""


def ready_weights(
    program: Program,
    *,
    threads: int,
    cpus: Sequence[int] = (),
    origin: Path,
    stored_bytes: int,
    limit: int,
    progress: Progress | None = None,
) -> CpuWeights:
    """threads and cpus: as CpuWeights takes them. origin: the model's path. stored_bytes: size of its weights. limit:
    bytes of disk for all copies together; 0 neither reads nor keeps any."""
    weights = CpuWeights(threads, cpus)
    if limit == 0 or stored_bytes < _SMALLEST_BYTES:
        weights.pack(program, progress=progress)
        return weights
    key = copy_key(program)
    found = find_packed(key)
    if found is not None:
        with contextlib.suppress(OSError):
            if weights.map(program, found, key=key, progress=progress):
                return weights
        forget_packed(key)
    try:
        _pack_and_keep(program, weights, key, origin, limit, progress)
    except MachineError as error:
        weights.pack(program, progress=progress)
        program.notes.append(f"its weights are converted at every start: {error}")
    return weights


def copy_key(program: Program) -> str:
    """All that the bytes of packed matrices depend on: the model's weights and how they are converted, and how this
    build packs."""
    made_by = f"{program.weights} {packing_digest()} {__version__}"
    return hashlib.blake2b(made_by.encode(), digest_size=16).hexdigest()


def _pack_and_keep(
    program: Program, weights: CpuWeights, key: str, origin: Path, limit: int, progress: Progress | None
) -> None:
    with new_packed(limit) as (file, room):
        with PackedWriter(file, key=key, limit=room) as writer:
            weights.pack(program, progress=progress, keep=writer)
        if writer.whole:
            keep_packed(file, key, origin=str(origin.resolve()), limit=limit)

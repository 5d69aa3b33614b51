"""The tiers below a device, and what a Batch asks of the disk, the lowest. A transfer is begun after the copies of its
batch and goes on beside later steps; its result comes when it comes (engine/executor.py).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """Write a host block of a group under this name. The block is not written to before the result is taken."""

    number: int
    name: bytes
    group: int
    block: int


@dataclass(frozen=True, slots=True)
class DiskRead:
    """Read what is stored under this name into a host block, which nobody reads before the result is taken."""

    number: int
    name: bytes
    group: int
    block: int


@dataclass(frozen=True, slots=True)
class DiskDelete:
    """Remove what is stored under this name. It has no result."""

    name: bytes
    group: int


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block that lies on the disk: its name, its group, its bytes there."""

    name: bytes
    group: int
    size: int


@dataclass(frozen=True, slots=True)
class TierSizes:
    """What lies below a device. host_blocks: one number per KV group; block_bytes: of a block of each group on disk;
    disk_bytes: 0 for no disk. idle_s: seconds that a block on the device goes unused before it is copied down."""

    host_blocks: tuple[int, ...]
    block_bytes: tuple[int, ...]
    disk_bytes: int = 0
    idle_s: float = 1.0


DiskTransfer = DiskWrite | DiskRead | DiskDelete


@dataclass(frozen=True, slots=True)
class DiskResult:
    """ok False: nothing was written; or what was read is missing or damaged, and is removed."""

    number: int
    ok: bool

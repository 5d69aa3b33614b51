"""What lies below the device: copies of its blocks in host memory, and copies of those on disk, both bounded. This
decides what moves and keeps the books; executors move it. Blocks are known by their name (chain.py), since a disk
outlives the tree.

A block that leaves the device, or was idle there for a while, is copied to the host; one that came to the host is
written to disk; each tier lets go of what was used least recently. A host block that is being read or written by the
disk is held until that is done, so it can be neither reused nor read too early. A copy between device and host is
ordered with the steps, which is fence enough.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable

import numpy as np

from headrace.core.batch import IntArray
from headrace.core.disk import DiskDelete, DiskRead, DiskResult, DiskTransfer, DiskWrite, StoredBlock, TierSizes
from headrace.policy.block_pool import ABSENT, BlockPool

MOST_WRITES = 16
"""Writes to disk under way at once; reads are as many as requests wait for."""
ON_DISK = -2
"""In the place of a host block: only the disk has it."""


class Tiers:
    """stored: what the disk holds already, least recently used first."""

    def __init__(self, sizes: TierSizes, stored: Iterable[StoredBlock] = ()) -> None:
        self.sizes = sizes
        self._pools = [BlockPool(n) for n in sizes.host_blocks]
        self._host: list[dict[bytes, int]] = [{} for _ in sizes.host_blocks]
        self._names: list[dict[int, bytes]] = [{} for _ in sizes.host_blocks]
        self._disk: OrderedDict[tuple[bytes, int], int] = OrderedDict(
            ((one.name, one.group), one.size) for one in stored
        )
        self._disk_bytes = sum(self._disk.values())
        # Under way, by number: (name, group, host block, whether it reads).
        self._under_way: dict[int, tuple[bytes, int, int, bool]] = {}
        self._reading: dict[tuple[bytes, int], int] = {}
        # Read from the disk, and not used since.
        self._read = [np.zeros(n, np.bool_) for n in sizes.host_blocks]
        self._writes: deque[tuple[bytes, int]] = deque()
        self._writing: set[tuple[bytes, int]] = set()
        self._numbers = 0
        self._orders: list[DiskTransfer] = []
        self._shrink()

    @property
    def host_held(self) -> int:
        """Host blocks in use."""
        return sum(len(blocks) for blocks in self._host)

    @property
    def disk_bytes(self) -> int:
        return self._disk_bytes

    @property
    def busy(self) -> bool:
        """Whether the disk still has to answer."""
        return bool(self._under_way)

    @property
    def has_orders(self) -> bool:
        """Whether take_orders() would bring any."""
        return bool(self._orders) or (bool(self._writes) and len(self._writing) < MOST_WRITES)

    def find(self, name: bytes, group: int) -> int:
        """The host block that holds this one; ON_DISK if the disk does, or ABSENT."""
        block = self._host[group].get(name)
        if block is not None:
            return block
        return ON_DISK if (name, group) in self._disk else ABSENT

    # Down

    def lower(self, name: bytes, group: int) -> int | None:
        """A host block to copy this block of the device to; None if the host has it already or has no room."""
        pool, known = self._pools[group], self._host[group].get(name)
        if known is not None:
            pool.touch(np.array([known], np.int32))
            return None
        block = self._take(group)
        if block is None:
            return None
        self._keep(name, group, block)
        pool.release(np.array([block], np.int32))
        if self.sizes.disk_bytes and (name, group) not in self._disk:
            self._writes.append((name, group))
        return block

    # Up

    def hold(self, group: int, blocks: IntArray) -> None:
        """These host blocks (all different) are about to be copied to the device: until let_go(), which is called as
        soon as the copies are ordered, none of them is given away."""
        self._pools[group].share(blocks)

    def let_go(self, group: int, blocks: IntArray) -> None:
        self._read[group][blocks] = False
        self._pools[group].release(blocks)

    def was_read(self, group: int, block: int) -> bool:
        """Whether a host block came from the disk and was not used since."""
        return bool(self._read[group][block])

    def fetch(self, name: bytes, group: int) -> int:
        """Have the disk read this block into the host, unless it does already. Returns the number of the read; 0 if
        the host has no room."""
        key = (name, group)
        if key not in self._reading:
            block = self._take(group)
            if block is None:
                return 0
            self._disk.move_to_end(key)
            self._reading[key] = self._begin(name, group, block, reads=True)
        return self._reading[key]

    def brought(self, number: int) -> bool:
        """Whether all reads up to this number have ended."""
        return all(reading > number for reading in self._reading.values())

    # The disk's side

    def take_orders(self) -> tuple[DiskTransfer, ...]:
        """What the disk is to do, to be begun after the copies of the same batch."""
        while self._writes and len(self._writing) < MOST_WRITES:
            name, group = key = self._writes.popleft()
            block = self._host[group].get(name)
            # Twice in the queue is what the host let go of and was given again.
            if block is not None and key not in self._disk and key not in self._writing:
                self._pools[group].share(np.array([block], np.int32))
                self._writing.add(key)
                self._begin(name, group, block, reads=False)
        orders, self._orders = tuple(self._orders), []
        return orders

    def arrived(self, results: Iterable[DiskResult]) -> bool:
        """Take in what the disk has done. Returns whether a read has ended, well or not."""
        read = False
        for result in results:
            name, group, block, reads = self._under_way.pop(result.number)
            key = (name, group)
            if reads:
                read = True
                del self._reading[key]
                if result.ok and name not in self._host[group]:
                    self._keep(name, group, block)
                    self._read[group][block] = True
                elif not result.ok:
                    # It was damaged or is gone; the disk has removed it.
                    self._disk_bytes -= self._disk.pop(key, 0)
            else:
                self._writing.remove(key)
                if result.ok:
                    self._disk[key] = self.sizes.block_bytes[group]
                    self._disk_bytes += self.sizes.block_bytes[group]
                    self._shrink()
            self._pools[group].release(np.array([block], np.int32))
        return read

    def _begin(self, name: bytes, group: int, block: int, *, reads: bool) -> int:
        self._numbers += 1
        self._under_way[self._numbers] = (name, group, block, reads)
        kind = DiskRead if reads else DiskWrite
        self._orders.append(kind(self._numbers, name, group, block))
        return self._numbers

    def _shrink(self) -> None:
        while self._disk_bytes > self.sizes.disk_bytes:
            key = next((key for key in self._disk if key not in self._reading), None)
            if key is None:
                return
            self._disk_bytes -= self._disk.pop(key)
            self._orders.append(DiskDelete(*key))

    def _take(self, group: int) -> int | None:
        """A host block, held once, whose former content is forgotten; None if all are held."""
        pool = self._pools[group]
        if not pool.available:
            return None
        for block in pool.evict(pool.shortage(1)).tolist():
            del self._host[group][self._names[group].pop(block)]
        block = int(pool.take(1)[0])
        self._read[group][block] = False
        return block

    def _keep(self, name: bytes, group: int, block: int) -> None:
        """A held block now holds this one."""
        self._pools[group].cached[block] = True
        self._host[group][name] = block
        self._names[group][block] = name

"""What the device is to be told before its next step: table writes and copies of blocks, each in the order in which
they were decided. Copies that somebody makes at once never get there.
"""

from collections.abc import Callable

import numpy as np

from headrace.core.batch import NO_COPIES, NO_EDITS, BlockCopies, BlockEdits, CopyKind, IntArray

CopyNow = Callable[[CopyKind, int, int, int], bool]
"""Makes a copy (kind, group, source, destination) at once; False if it is not its own to make."""


class DeviceOrders:
    def __init__(self, copy_now: CopyNow | None = None) -> None:
        self._copy_now = copy_now
        self._edits: list[tuple[IntArray, int, IntArray, IntArray, IntArray]] = []
        self._copies: list[tuple[CopyKind, int, int, int]] = []

    @property
    def has_copies(self) -> bool:
        return bool(self._copies)

    def write(self, slots: IntArray, group: int, index: IntArray, blocks: IntArray, epochs: IntArray) -> None:
        self._edits.append((slots, group, index, blocks, epochs))

    def copy(self, kind: CopyKind, group: int, source: int, destination: int) -> None:
        if self._copy_now is None or not self._copy_now(kind, group, source, destination):
            self._copies.append((kind, group, source, destination))

    def take_edits(self) -> BlockEdits:
        """Those since the last call."""
        if not self._edits:
            return NO_EDITS
        edits, self._edits = self._edits, []
        if len(edits) == 1:
            slots, group, index, blocks, epochs = edits[0]
            return BlockEdits(slots, np.full(len(slots), group, np.int32), index, blocks, epochs)
        return BlockEdits(
            np.concatenate([edit[0] for edit in edits]),
            np.repeat(np.array([edit[1] for edit in edits], np.int32), [len(edit[0]) for edit in edits]),
            np.concatenate([edit[2] for edit in edits]),
            np.concatenate([edit[3] for edit in edits]),
            np.concatenate([edit[4] for edit in edits]),
        )

    def take_copies(self) -> BlockCopies:
        """Those since the last call."""
        if not self._copies:
            return NO_COPIES
        columns = np.array(self._copies, np.int32).T.copy()
        self._copies = []
        return BlockCopies(*columns)

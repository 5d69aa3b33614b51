"""What the device is to be told before its next step: table writes and copies of blocks, each in the order in which
they were decided.
"""

from __future__ import annotations

import numpy as np

from headrace.core.batch import BlockCopies, BlockEdits, CopyKind, IntArray

_NO_EDITS = BlockEdits()
_NO_COPIES = BlockCopies()


class DeviceOrders:
    def __init__(self) -> None:
        self._edits: list[tuple[IntArray, int, IntArray, IntArray, IntArray]] = []
        self._copies: list[tuple[CopyKind, int, int, int]] = []

    @property
    def has_copies(self) -> bool:
        return bool(self._copies)

    def write(self, slots: IntArray, group: int, index: IntArray, blocks: IntArray, epochs: IntArray) -> None:
        self._edits.append((slots, group, index, blocks, epochs))

    def copy(self, kind: CopyKind, group: int, source: int, destination: int) -> None:
        self._copies.append((kind, group, source, destination))

    def take_edits(self) -> BlockEdits:
        """Those since the last call."""
        if not self._edits:
            return _NO_EDITS
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
            return _NO_COPIES
        columns = np.array(self._copies, np.int32).T.copy()
        self._copies = []
        return BlockCopies(*columns)

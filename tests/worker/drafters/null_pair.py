"""Two devices in a page, of which the one guesses for the other: the same numbers come of the same text, so a guess is
wrong only where what was cached for the guesser is. Its cells and their notes lie side by side, as in a real block."""

from __future__ import annotations

import dataclasses

import numpy as np
from msgspec import structs

from headrace.core.batch import BlockEdits, CopyKind
from headrace.core.kv_layout import NAME_WORDS
from headrace.engine.null_executor import NullExecutor
from headrace.worker.drafters.model import ModelDrafter


class Asked(NullExecutor):
    """Says that it has a group more than it computes, which is the guesser's. host: that group's below the device."""

    def __init__(self, has, host, disk=None):
        tiers = has.tiers
        if tiers is not None:
            tiers = dataclasses.replace(tiers, host_blocks=tiers.host_blocks[:1], block_bytes=tiers.block_bytes[:1])
        super().__init__(
            dataclasses.replace(has, num_blocks=has.num_blocks[:1], windows=has.windows[:1], tiers=tiers), disk=disk
        )
        self._has = has
        self._host += host

    @property
    def capacity(self):
        return self._has

    def _apply_changes(self, batch):
        assert not batch.copies.group.any(), "the guesser makes its own copies"
        edits = batch.edits
        mine = edits.group == 0
        columns = (getattr(edits, name)[mine] for name in BlockEdits.__struct_fields__)
        super()._apply_changes(structs.replace(batch, edits=BlockEdits(*columns)))


class Guesser(NullExecutor):
    """May be told tokens after some that it was not told, whose positions were computed for others."""

    def _write_drafts(self, drafts):
        for slot, position in zip(drafts.slot.tolist(), drafts.position.tolist(), strict=True):
            self._tokens[slot] += [0] * (position - len(self._tokens[slot]))
        super()._write_drafts(drafts)


def null_pair(has, *, max_tokens=16, max_model_len=None, disk=None):
    """has: of both, two groups. Returns the executor and its drafter."""
    size, longest = has.block_size, max_model_len or has.max_model_len
    alone = dataclasses.replace(
        has, num_blocks=has.num_blocks[1:], windows=has.windows[1:], tiers=None, max_model_len=longest
    )
    guesser = Guesser(alone)
    width = 2 * size + NAME_WORDS
    cells = guesser._cells[0] = np.zeros((has.num_blocks[1], width), np.uint64)
    host = [np.zeros((n, width), np.uint64) for n in (has.tiers.host_blocks[1:] if has.tiers else ())]

    def run(batch):
        guesser.submit(batch)
        output = guesser.collect()
        return structs.replace(output, logprob=np.zeros(len(output.tokens), np.float32))  # it is sure of itself

    def copy(kind, group, source, destination):
        if group == 1:
            origin = host[0] if kind == CopyKind.UP else cells
            target = host[0] if kind == CopyKind.DOWN else cells
            target[destination] = origin[source]
        return group == 1

    drafter = ModelDrafter(
        run,
        copy,
        [cells.view(np.int64)[:, size:]],
        first_group=1,
        fingerprint="null",
        num_slots=has.num_slots,
        block_size=size,
        max_tokens=max_tokens,
        max_model_len=longest,
    )
    return Asked(has, host, disk), drafter

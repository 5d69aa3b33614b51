"""assemble(): a program becomes an executor. Everything a device needs is allocated here, once, at its largest size,
and bound together; afterwards nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headrace.core.batch import IntArray
from headrace.core.disk import TierSizes
from headrace.core.kv_layout import NAME_WORDS, KVLayout
from headrace.engine.executor import Capacity
from headrace.ops.program import Program
from headrace.ops.sampling import SamplingTable
from headrace.ops.step import StepInputs
from headrace.worker.devices import Device
from headrace.worker.disk_blocks import HEAD_BYTES, DiskBlocks
from headrace.worker.drafters.model import ModelDrafter
from headrace.worker.grammar import Compile, GrammarMasks, no_grammars
from headrace.worker.inputs import SlotInputs
from headrace.worker.kv_cache import Bytes, KVCache
from headrace.worker.local_executor import LocalExecutor
from headrace.worker.runner import Runner


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A folder for blocks of the KV cache, and the bytes that they may take."""

    folder: Path
    num_bytes: int


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model that guesses ahead. Its KV groups, all noted and none with a window, come after the other's.
    max_model_len: the longest text that it takes."""

    program: Program
    device: Device
    max_model_len: int

    def up_to(self, max_model_len: int) -> DraftModel:
        return replace(self, max_model_len=min(self.max_model_len, max_model_len))


def assemble(
    program: Program,
    device: Device,
    *,
    num_slots: int,
    num_blocks: tuple[int, ...],
    windows: tuple[int | None, ...],
    max_model_len: int,
    max_tokens: int,
    depth: int = 1,
    compile_grammar: Compile = no_grammars,
    host_blocks: tuple[int, ...] = (),
    disk: DiskSpace | None = None,
    draft: DraftModel | None = None,
) -> LocalExecutor:
    """num_blocks, windows, host_blocks: one for each KV group, the draft model's last. max_tokens: most rows of a step.
    device chooses who computes (worker/devices.py). compile_grammar: for requests with structured_outputs
    (models/grammar.py). host_blocks: below the cache; disk: below those."""
    layouts = program.kv if draft is None else program.kv + draft.program.kv
    cache = KVCache(layouts, num_blocks, host_blocks)
    below = None if disk is None else DiskBlocks(disk.folder, cache.host)
    step = StepInputs(
        layouts,
        num_blocks,
        max_tokens=max_tokens,
        num_slots=num_slots,
        max_model_len=max_model_len,
        kv=cache.pools,
    )
    table = SamplingTable(num_slots, program.vocab_size)
    bound, sampler = device(program, step, table)
    grammars = GrammarMasks(num_slots, program.vocab_size, compile_grammar)
    runner = Runner(bound, sampler, table, SlotInputs(step, max_model_len), cache, grammars, below)
    capacity = Capacity(
        num_slots=num_slots,
        block_size=layouts[0].block_size,
        num_blocks=num_blocks,
        windows=windows,
        max_model_len=max_model_len,
        vocab_size=program.vocab_size,
        tiers=_tiers(layouts, host_blocks, disk) if host_blocks else None,
    )
    drafter = None if draft is None else _drafter(draft, cache, num_blocks, num_slots, max_tokens)
    return LocalExecutor(runner, capacity, depth, disk=below, drafter=drafter)


def _drafter(
    draft: DraftModel, cache: KVCache, num_blocks: tuple[int, ...], num_slots: int, max_tokens: int
) -> ModelDrafter:
    program, longest, first = draft.program, draft.max_model_len, len(num_blocks) - len(draft.program.kv)
    step = StepInputs(
        program.kv,
        num_blocks[first:],
        max_tokens=max_tokens,
        num_slots=num_slots,
        max_model_len=longest,
        max_logits=num_slots,
        kv=cache.pools[first:],
    )
    table = SamplingTable(num_slots, program.vocab_size)
    bound, sampler = draft.device(program, step, table)
    grammars = GrammarMasks(num_slots, program.vocab_size, no_grammars)
    runner = Runner(bound, sampler, table, SlotInputs(step, longest), cache, grammars)

    def copy(kind: int, group: int, source: int, destination: int) -> bool:
        if group >= first:
            cache.copy_one(kind, group, source, destination)
        return group >= first

    return ModelDrafter(
        runner.run,
        copy,
        [_notes(layout, pool) for layout, pool in zip(program.kv, cache.pools[first:], strict=True)],
        first_group=first,
        fingerprint=program.fingerprint,
        num_slots=num_slots,
        block_size=program.kv[0].block_size,
        max_tokens=max_tokens,
        max_model_len=longest,
    )


def _notes(layout: KVLayout, pool: Bytes) -> IntArray:
    """Where the blocks of a group have their notes: a view."""
    words = NAME_WORDS + layout.block_size
    blocks: IntArray = pool.reshape(-1, layout.block_bytes)[:, layout.note_offset :].view(np.int32)
    return blocks[:, :words]


def _tiers(layouts: tuple[KVLayout, ...], host_blocks: tuple[int, ...], disk: DiskSpace | None) -> TierSizes:
    on_disk = tuple(HEAD_BYTES + layout.block_bytes for layout in layouts)
    return TierSizes(host_blocks, on_disk, 0 if disk is None else disk.num_bytes)


def activation_bytes(program: Program, max_tokens: int, max_logits: int) -> int:
    """Most bytes that a step of max_tokens rows, of which max_logits have logits, writes between weights and logits."""
    rows = {"tokens": max_tokens, "logits": max_logits}
    return sum(4 * rows[buffer.rows] * buffer.width for buffer in program.buffers.values())

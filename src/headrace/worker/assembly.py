"""assemble(): a program becomes an executor. Everything a device needs is allocated here, once, at its largest size,
and bound together; afterwards nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.core.disk import TierSizes
from headrace.core.kv_layout import KVLayout
from headrace.engine.executor import Capacity
from headrace.ops.program import Program
from headrace.ops.sampling import SamplingTable
from headrace.ops.step import StepInputs
from headrace.worker.devices import Device
from headrace.worker.disk_blocks import HEAD_BYTES, DiskBlocks
from headrace.worker.grammar import Compile, GrammarMasks, no_grammars
from headrace.worker.inputs import SlotInputs
from headrace.worker.kv_cache import KVCache
from headrace.worker.local_executor import LocalExecutor
from headrace.worker.runner import Runner


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A folder for blocks of the KV cache, and the bytes that they may take."""

    folder: Path
    num_bytes: int


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
) -> LocalExecutor:
    """max_tokens: most rows of a step. device chooses who computes (worker/devices.py). compile_grammar: for requests
    with structured_outputs (models/grammar.py). host_blocks: of each group, below the cache; disk: below those."""
    layouts = program.kv
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
    return LocalExecutor(runner, capacity, depth, disk=below)


def _tiers(layouts: tuple[KVLayout, ...], host_blocks: tuple[int, ...], disk: DiskSpace | None) -> TierSizes:
    on_disk = tuple(HEAD_BYTES + layout.block_bytes for layout in layouts)
    return TierSizes(host_blocks, on_disk, 0 if disk is None else disk.num_bytes)


def activation_bytes(program: Program, max_tokens: int) -> int:
    """Most bytes that a step of max_tokens rows, each with logits, writes between weights and logits."""
    return sum(4 * max_tokens * buffer.width for buffer in program.buffers.values())

"""assemble(): a program becomes an executor. Everything a device needs is allocated here, once, at its largest size,
and bound together; afterwards nothing moves.
"""

from __future__ import annotations

from headrace.engine.executor import Capacity
from headrace.ops.program import Program
from headrace.ops.sampling import SamplingTable
from headrace.ops.step import StepInputs
from headrace.worker.devices import Device
from headrace.worker.grammar import Compile, GrammarMasks, no_grammars
from headrace.worker.inputs import SlotInputs
from headrace.worker.kv_cache import KVCache
from headrace.worker.local_executor import LocalExecutor
from headrace.worker.runner import Runner


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
) -> LocalExecutor:
    """max_tokens: most rows of a step. device chooses who computes (worker/devices.py). compile_grammar: for requests
    with structured_outputs (models/grammar.py)."""
    layouts = program.kv
    cache = KVCache(layouts, num_blocks)
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
    runner = Runner(bound, sampler, table, SlotInputs(step, max_model_len), cache, grammars)
    capacity = Capacity(
        num_slots=num_slots,
        block_size=layouts[0].block_size,
        num_blocks=num_blocks,
        windows=windows,
        max_model_len=max_model_len,
        vocab_size=program.vocab_size,
    )
    return LocalExecutor(runner, capacity, depth)


def activation_bytes(program: Program, max_tokens: int) -> int:
    """Most bytes that a step of max_tokens rows, each with logits, writes between weights and logits."""
    return sum(4 * max_tokens * buffer.width for buffer in program.buffers.values())

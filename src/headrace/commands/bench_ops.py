"""headrace bench ops: what each op of a model's step reaches of the machine's best, for one row, for a batch and for
a prompt."""

import dataclasses
from pathlib import Path
from typing import Any

import click
import numpy as np

from headrace.bench.ops import least_times, op_rates
from headrace.commands.report import json_option, show
from headrace.commands.settings import takes_config
from headrace.core.config import Config
from headrace.models.loader import load_model, lower_model
from headrace.models.sources import locate_model
from headrace.ops.cpu import CpuProgram
from headrace.ops.cpu_ceilings import Ceilings, measure_ceilings
from headrace.ops.program import Program
from headrace.ops.registry import set_entries
from headrace.ops.step import StepInputs
from headrace.ops.work import Work, attention_works, linear_works
from headrace.worker.machine import this_machine


@click.command()
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Rows of the batch.")
@click.option("--context", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens before each row.")
@click.option("--prompt", type=click.IntRange(min=1), default=512, show_default=True, help="Rows of the prompt.")
@click.option("--tries", type=click.IntRange(min=1), default=10, show_default=True, help="Steps; the best counts.")
@json_option
@takes_config()
def ops(batch: int, context: int, prompt: int, tries: int, json_file: Path | None, config: Config) -> None:
    """How fast each op of MODEL's step is, beside what this machine does at best. Run it on a quiet machine."""
    threads = this_machine().threads if config.threads is None else config.threads
    longest = max(context + 1, prompt)
    loaded = load_model(Path(locate_model(config).model))
    program = lower_model(loaded, config, longest)
    steps = {
        "decode 1": [(context, 1)],
        f"decode {batch}": [(context, 1)] * batch,
        f"prompt {prompt}": [(0, prompt)],
    }
    works = {name: _works(program, entries) for name, entries in steps.items()}
    inputs = _inputs(program, slots=batch, rows=max(batch, prompt), longest=longest)
    bound = CpuProgram(program, inputs, threads=threads, isa=config.isa)
    ceilings = measure_ceilings(threads, config.isa)
    report: dict[str, Any] = {"threads": threads, "kernels": bound.isa, "machine": dataclasses.asdict(ceilings)}
    for name, entries in steps.items():
        report[name] = _measure(bound, inputs, entries, works[name], ceilings, tries)
    show(report, json_file)


def _works(program: Program, entries: list[tuple[int, int]]) -> dict[str, list[Work]]:
    """Every sequence wants the logits of its last row."""
    rows = sum(count for _, count in entries)
    return {
        "linear": linear_works(program, rows=rows, logits=len(entries)),
        "attention": attention_works(program.ops, dict(enumerate(program.kv)), entries),
    }


def _inputs(program: Program, *, slots: int, rows: int, longest: int) -> StepInputs:
    """Random tokens; every slot has blocks of its own, in random places."""
    random = np.random.default_rng(0)
    blocks = tuple(slots * -(-longest // layout.block_size) for layout in program.kv)
    inputs = StepInputs(program.kv, blocks, max_tokens=rows, num_slots=slots, max_model_len=longest, max_logits=slots)
    for table, count in zip(inputs.tables, blocks, strict=True):
        table[:] = random.permutation(count).reshape(table.shape)
    inputs.tokens[:] = random.integers(0, program.vocab_size, rows)
    return inputs


def _measure(
    bound: CpuProgram,
    inputs: StepInputs,
    entries: list[tuple[int, int]],
    works: dict[str, list[Work]],
    ceilings: Ceilings,
    tries: int,
) -> dict[str, Any]:
    set_entries(inputs, list(enumerate(entries)))
    inputs.logits = len(entries)
    inputs.logit_rows[: len(entries)] = np.cumsum([count for _, count in entries]) - 1
    bound.run()
    times = least_times([bound.profile() for _ in range(tries)])
    named = {op: [(w.name, w.operations, w.bytes) for w in items] for op, items in works.items()}
    rates = op_rates(times, named)
    return {name: rate.report(ceilings.int8_per_s, ceilings.read_bytes_per_s) for name, rate in rates.items()}

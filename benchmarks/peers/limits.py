"""How near Headrace comes to what a machine can do: the least time that a workload's arithmetic and reads take at the
rates measured on it (`headrace doctor --measure`), beside the time that it took. Every decode step reads all weights
and the cache of every sequence; a prompt's weights are read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.core.config import Config
from headrace.models.loader import load_model, lower_model
from headrace.models.sources import locate_model
from headrace.ops.cpu_ceilings import Ceilings, measure_ceilings
from headrace.ops.program import Program
from headrace.ops.work import attention_works, linear_works


@dataclass(frozen=True, slots=True)
class Phase:
    """A prompt of all sequences, or one decode step, `times` times over: operations of products and of attention, and
    bytes read."""

    times: int
    products: int
    attention: int
    bytes: int

    @classmethod
    def of(cls, program: Program, times: int, entries: list[tuple[int, int]]) -> Phase:
        """entries: first position and rows of each sequence, each of which wants one row of logits."""
        rows = sum(count for _, count in entries)
        linear = linear_works(program, rows=rows, logits=len(entries))
        attention = attention_works(program.ops, dict(enumerate(program.kv)), entries)
        read = sum(w.bytes for w in linear) + sum(w.bytes for w in attention)
        return cls(times, sum(w.operations for w in linear), sum(w.operations for w in attention), read)

    def least_s(self, limits: Ceilings) -> float:
        compute = self.products / limits.int8_per_s + self.attention / limits.float32_per_s
        return self.times * max(compute, self.bytes / limits.read_bytes_per_s)


def report_limits(
    model: str, threads: int, shapes: list[tuple[str, int, int, int]], rates: dict[str, float]
) -> dict[str, dict[str, float]]:
    """By workload: int8 and read are the shares of the measured rates over the whole run, least that of the least
    time. shapes as in a Task; rates: what Headrace reached, in the unit of the table."""
    config = Config(model=model).resolve()
    loaded = load_model(Path(locate_model(config).model))
    program = lower_model(loaded, config)
    limits = measure_ceilings(threads)
    report = {}
    for name, requests, prompt, made in shapes:
        seconds = requests * (prompt if made == 1 else made) / rates[name]
        phases = [Phase.of(program, 1, [(0, prompt)] * requests)]
        if made > 1:
            phases.append(Phase.of(program, made - 1, [(prompt + made // 2, 1)] * requests))
        report[name] = {
            "int8": sum(p.times * p.products for p in phases) / seconds / limits.int8_per_s,
            "read": sum(p.times * p.bytes for p in phases) / seconds / limits.read_bytes_per_s,
            "least": sum(p.least_s(limits) for p in phases) / seconds,
        }
    machine = {"int8_per_s": limits.int8_per_s, "read_bytes_per_s": limits.read_bytes_per_s}
    return {"machine": machine, **report}

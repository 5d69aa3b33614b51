"""Who computes a program and samples from it: the CPU kernels. assemble() is given this; nothing else in this room
knows it.
"""

from collections.abc import Callable
from functools import partial

from headrace.ops.cpu import CpuProgram
from headrace.ops.cpu_sampling import CpuSampler
from headrace.ops.cpu_weights import CpuWeights
from headrace.ops.program import Program
from headrace.ops.sampling import Sampler, SamplingTable
from headrace.ops.step import StepInputs
from headrace.worker.runner import BoundProgram

Device = Callable[[Program, StepInputs, SamplingTable], tuple[BoundProgram, Sampler]]
"""Binds a program to its inputs, and makes a sampler over the table."""


def cpu_device(threads: int, isa: str = "auto", weights: CpuWeights | None = None) -> Device:
    """The kernels, on this many threads; without weights packed before, they take and pack the program's matrices."""
    return partial(_on_cpu, threads, isa, weights)


def _on_cpu(
    threads: int,
    isa: str,
    weights: CpuWeights | None,
    program: Program,
    inputs: StepInputs,
    table: SamplingTable,
) -> tuple[BoundProgram, Sampler]:
    bound = CpuProgram(program, inputs, threads=threads, isa=isa, weights=weights)
    return bound, CpuSampler(table, kernels=bound.kernels, pool=bound.pool)

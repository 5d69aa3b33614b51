"""Runs a registry case on the reference and on the kernels, from the same buffers and caches, and compares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.ops.cpu import CpuProgram
from headrace.ops.reference import ReferenceProgram


def outcome(case, runner):
    """Outputs and caches after one step; the case's caches are left as they were."""
    before = [cache.copy() for cache in case.inputs.kv]
    for name, values in case.fill.items():
        runner.buffer(name)[:] = values
    runner.run()
    counts = {"tokens": case.inputs.rows, "logits": case.inputs.logits}
    outputs = {n: runner.buffer(n)[: counts[case.program.buffers[n].rows]].copy() for n in case.outputs}
    after = [cache.copy() for cache in case.inputs.kv]
    for cache, saved in zip(case.inputs.kv, before, strict=True):
        cache[:] = saved
    return outputs, after


def cpu(case, *, threads=1, isa="auto"):
    """The kernels over a case, whose matrices stay with it."""
    return CpuProgram(
        replace(case.program, matrices=dict(case.program.matrices)), case.inputs, threads=threads, isa=isa
    )


def assert_agrees(case, entry, *, threads=1, isa="auto"):
    runner = cpu(case, threads=threads, isa=isa)
    reference = ReferenceProgram(case.program, case.inputs, bf16=runner.isa == "avx512bf16")
    expected, expected_caches = outcome(case, reference)
    actual, caches = outcome(case, runner)
    for name, value in expected.items():
        largest = np.abs(value).max(initial=0)
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=entry.rtol * largest + entry.atol, err_msg=name)
    return expected_caches, caches

"""Every op on the kernels agrees with its reference, on every instruction set that this processor has."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.ops.agreement import assert_agrees, cpu, outcome
from tests.tiny_models import VOCAB, tiny_program

from headrace.core.errors import ConfigError
from headrace.ops.cpu import CpuProgram, available_isas
from headrace.ops.program import (
    Add,
    Attention,
    Embed,
    ExpertLinear,
    GatedActivation,
    Linear,
    MixExperts,
    RmsNorm,
    RopeKV,
    RouteExperts,
    SelectRows,
    Softcap,
)
from headrace.ops.reference import ReferenceProgram
from headrace.ops.registry import OPS, PROVIDERS, set_entries, step_inputs

ISAS = available_isas()
isas = pytest.mark.parametrize("isa", ISAS)

OPTIONS = {
    Embed: [{"scheme": s, "width": 96, "scale": c} for s in ("f32", "bf16", "q8", "q4") for c in (1.0, 8.0)],
    RmsNorm: [{}, {"width": 576, "rows": 33}, {"group": 8, "columns": (16, 48)}, {"width": 7}],
    Linear: [
        {"scheme": scheme, "n": n, "k": k, "rows": rows, "bias": bias, "accumulate": bias, "k_segment": segment}
        for scheme in ("f32", "bf16", "q8", "q4")
        for n, k, rows, segment in ((40, 96, 1, 0), (33, 192, 5, 96), (7, 32, 70, 32), (130, 64, 17, 0))
        for bias in (False, True)
    ],
    GatedActivation: [{"activation": a, "width": w} for a in ("silu", "gelu_tanh") for w in (8, 72, 1536)],
    Add: [{}, {"width": 576, "rows": 33}, {"width": 7}],
    RouteExperts: [{}, {"ties": True, "rows": 40}, {"experts": 128, "taken": 8, "normalize": False}],
    ExpertLinear: [
        {"scheme": scheme, "rows": rows, "experts": experts, "shared_input": shared, "column": 32, "k_segment": segment}
        for scheme in ("f32", "bf16", "q8", "q4")
        for rows, experts in ((1, 5), (7, 64), (90, 3))
        for shared, segment in ((True, 0), (False, 32))
    ],
    MixExperts: [{}, {"width": 7, "taken": 1}],
    SelectRows: [{}, {"logits": 0}],
    Softcap: [{}, {"width": 5}, {"cap": 30.0, "rows": 40}],
}


@isas
@pytest.mark.parametrize(("op", "options"), [(op, o) for op, many in OPTIONS.items() for o in many])
def test_op_agrees_with_its_reference(op, options, isa):
    assert_agrees(OPS[op].make(np.random.default_rng(0), **options), OPS[op], threads=2, isa=isa)


def test_every_op_of_the_registry_is_tested():
    assert OPTIONS.keys() | {RopeKV, Attention} == OPS.keys()
    assert next(iter(PROVIDERS)) == "reference"


ATTENTION = [
    {},
    {"window": 20, "softcap": 2.0},
    {"entries": ((1000, 1), (3, 40), (600, 2)), "heads": 9, "kv_heads": 3, "interleaved": True, "rotary_dim": 4},
    {"entries": ((1300, 1),), "window": 700},
    {"entries": ((0, 50),), "heads": 4, "kv_heads": 4, "rotary_dim": 0},
    {"entries": ((20, 3), (0, 1)), "heads": 28, "kv_heads": 1, "v_head_dim": 24},
]


@isas
@pytest.mark.parametrize("options", ATTENTION)
@pytest.mark.parametrize(
    ("kv_dtype", "block_size", "head_dim"), list(itertools.product(("bf16", "fp32", "int8"), (16, 32), (8, 40, 64, 80)))
)
def test_attention_agrees_with_its_reference(isa, options, kv_dtype, block_size, head_dim):
    case = OPS[Attention].make(
        np.random.default_rng(1), kv_dtype=kv_dtype, block_size=block_size, head_dim=head_dim, **options
    )
    expected, caches = assert_agrees(case, OPS[Attention], threads=2, isa=isa)
    # What is stored decides later tokens: a rounding of k after rope may differ in its last bit, and nowhere else.
    for reference, stored in zip(expected, caches, strict=True):
        assert np.mean(reference != stored) < 1e-3


@isas
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp32", "int8"])
@pytest.mark.parametrize("scheme", ["f32", "bf16", "q8", "q4"])
def test_a_whole_decoder_agrees_with_its_reference(scheme, kv_dtype, isa):
    program = tiny_program(scheme, kv_dtype=kv_dtype, windows=(None, 20))
    inputs = step_inputs(program.kv, [(0, 40), (0, 3), (0, 70)], np.random.default_rng(2), logits=9)
    inputs.tokens %= VOCAB
    runner = CpuProgram(replace(program, matrices=dict(program.matrices)), inputs, threads=2, isa=isa)
    rounds = (scheme, runner.isa) == ("bf16", "avx512bf16")
    expected = ReferenceProgram(program, inputs, bf16=rounds).run().copy()
    actual = runner.run()
    # Rounding to the cache's type and to int8 or bf16 activations turns last bits into steps now and then.
    tolerance = 1e-4 if scheme in ("f32", "bf16") and kv_dtype == "fp32" and not rounds else 5e-2
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


def test_a_nan_stays_with_its_own_sequence():
    """A poisoned block that another sequence gets next, behind its own tokens, must not reach it."""
    case = OPS[Attention].make(np.random.default_rng(3), entries=((10, 2), (30, 1)), kv_dtype="bf16")
    clean, _ = outcome(case, cpu(case))
    layout, table = case.program.kv[0], case.inputs.tables[0]
    units = case.inputs.kv[0].reshape(-1, layout.kv_heads, layout.num_layers, layout.unit_bytes)
    unit = units[table[0, 0]]
    keys = unit[..., : layout.k_dim * 16 * 2].view(np.uint16).reshape(2, 2, layout.k_dim, 16)
    values = unit[..., layout.v_offset : layout.v_offset + layout.v_dim * 16 * 2].view(np.uint16)
    keys[..., 12:] = 0x7FC0
    values.reshape(2, 2, 16, layout.v_dim)[:, :, 12:] = 0x7FC0
    poisoned, _ = outcome(case, cpu(case))
    np.testing.assert_array_equal(poisoned["attention"], clean["attention"])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda i: i.tokens.__setitem__(3, VOCAB), "tokens must be from 0 to 96, got 97"),
        (lambda i: i.tokens.__setitem__(0, -1), "tokens"),
        (lambda i: i.logit_rows.__setitem__(0, i.rows), "logit_rows"),
        (lambda i: i.entry_slot.__setitem__(0, 2), "entry_slot"),
        (lambda i: i.entry_row.__setitem__(1, 4), "entry_row"),
        (lambda i: i.entry_count.__setitem__(1, 0), "entry_count"),
        (lambda i: i.entry_start.__setitem__(1, 10_000), "positions"),
        (lambda i: i.positions.__setitem__(1, 0), "positions"),
        (lambda i: i.tables[0].__setitem__((0, 0), 10_000), "10000"),
        (lambda i: i.tables[0].__setitem__((0, 0), -1), "-1"),
        (lambda i: setattr(i, "rows", i.max_tokens + 1), "rows"),
        (lambda i: setattr(i, "logits", -1), "logits"),
    ],
)
@pytest.mark.parametrize("provider", ["reference", "cpu"])
def test_an_index_out_of_range_is_refused_before_anything_is_computed(provider, change, names):
    program = tiny_program()
    inputs = step_inputs(program.kv, [(0, 5), (0, 3)], np.random.default_rng(4))
    runner = PROVIDERS[provider](program, inputs)
    runner.run()
    change(inputs)
    with pytest.raises(ValueError, match=names):
        runner.run()


def test_blocks_behind_a_window_may_be_gone():
    program = tiny_program(windows=(20,))
    for provider in PROVIDERS.values():
        inputs = step_inputs(program.kv, [(0, 1)], np.random.default_rng(5), max_model_len=96)
        runner = provider(replace(program, matrices=dict(program.matrices)), inputs)
        set_entries(inputs, [(0, (60, 1))])
        expected = runner.run().copy()
        inputs.tables[0][0, :2] = -1  # positions 0 .. 31; the row sees 41 .. 60
        np.testing.assert_array_equal(runner.run(), expected)
        inputs.tables[0][0, 2] = -1
        with pytest.raises(ValueError, match="-1"):
            runner.run()


def test_refuses_threads_and_instruction_sets_that_cannot_be_had():
    inputs = step_inputs(tiny_program().kv, [(0, 5)], np.random.default_rng(6))
    with pytest.raises(ConfigError, match="threads must be at least 1, got 0"):
        CpuProgram(tiny_program(), inputs, threads=0)
    with pytest.raises(ConfigError, match="'sse9'") as error:
        CpuProgram(tiny_program(), inputs, isa="sse9")
    assert all(isa in str(error.value) for isa in ISAS)


def test_says_what_it_is_and_what_it_holds():
    program = tiny_program("q8")
    inputs = step_inputs(program.kv, [(0, 5)], np.random.default_rng(7))
    seen = []
    total = len(program.matrices)
    runner = CpuProgram(program, inputs, threads=2, progress=lambda done, of: seen.append((done, of)))
    assert program.matrices == {}, "packed matrices must be dropped"
    assert seen == [(i + 1, total) for i in range(total)]
    assert (runner.isa, runner.threads) == (ISAS[0], 2)
    assert runner.weight_bytes > 0
    assert runner.activation_bytes > 0
    assert [name for name, _ in runner.profile()][:2] == ["embed", "rms_norm"]


def test_a_refused_thread_is_an_error_and_no_crash():
    """In a process of its own, whose address space has no room for so many stacks."""
    script = """
import resource, threading
from pathlib import Path
from headrace.core.errors import MachineError
from headrace.ops.cpu_weights import CpuWeights
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
threading.stack_size(0)
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
try:
    CpuWeights(200)
except MachineError as error:
    print(error)
CpuWeights(2)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(r"threads=200: of 200 threads the system allowed \d+: .*\n", done.stdout)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_workers_stay_on_the_processors_they_are_given():
    """In a process of its own: the masks of its threads."""
    script = """
import os
from pathlib import Path
from headrace.core.errors import MachineError
from headrace.ops.cpu_weights import CpuWeights
allowed = sorted(os.sched_getaffinity(0))
weights = CpuWeights(3, allowed)
masks = [os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()]
free = [mask for mask in masks if mask == set(allowed)]
kept = sorted(mask.pop() for mask in masks if len(mask) == 1)
wanted = sorted(allowed[i % len(allowed)] for i in (1, 2))
print(kept == wanted and (len(allowed) == 1 or bool(free)))
try:
    CpuWeights(2, [100_000])
except MachineError as error:
    print(error)
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert done.stdout.splitlines() == [
        "True",
        "threads=2: a thread cannot be kept on processor 100000",
    ]


def test_an_idle_pool_uses_no_processor():
    """In a process of its own: the processor time of 0.4 s of waiting, after a step on three threads."""
    script = """
import time
import numpy as np
from headrace.ops.cpu import CpuProgram
from headrace.ops.registry import step_inputs
from tests.tiny_models import tiny_program
program = tiny_program()
runner = CpuProgram(program, step_inputs(program.kv, [(0, 5)], np.random.default_rng(0)), threads=3)
runner.run()
time.sleep(0.05)
before = time.process_time()
time.sleep(0.4)
print(time.process_time() - before)
runner.run()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 0.1

"""No allocation in a step: a library that counts calls of malloc and its kin lies before the C library, in a process of
its own, and is read around each call into the kernels. Python's own small objects never come by there."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys

import pytest

COUNTER = r"""
#include <errno.h>
#include <stddef.h>
long allocations;
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
#define COUNTED (__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED))
void *malloc(size_t n) { return COUNTED, __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return COUNTED, __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return COUNTED, __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { return COUNTED, __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { return COUNTED, __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) { return COUNTED, (*p = __libc_memalign(a, n)) ? 0 : ENOMEM; }
"""

CHILD = """
import ctypes, json, sys
import numpy as np
from tests.tiny_models import VOCAB, tiny_program
from headrace.core.batch import TokenMasks
from headrace.core.request import SamplingParams
from headrace.ops.cpu import CpuProgram
from headrace.ops.cpu_sampling import CpuSampler
from headrace.ops.registry import set_entries
from headrace.ops.sampling import SamplingTable
from headrace.ops.step import StepInputs

library, scheme, kv_dtype = sys.argv[1:]
counter = ctypes.c_long.in_dll(ctypes.CDLL(library), "allocations")

class Counted:
    def __init__(self, inner):
        self.inner, self.allocations = inner, 0

    def run(self, *arguments):
        before = counter.value
        self.inner.run(*arguments)
        self.allocations = counter.value - before

SLOTS, LENGTH = 32, 1100
program = tiny_program(scheme, kv_dtype=kv_dtype, windows=(None, 600))
program.vectors["rope0"] = np.resize(program.vectors["rope0"], (LENGTH, *program.vectors["rope0"].shape[1:]))
blocks = SLOTS * -(-LENGTH // program.kv[0].block_size)
inputs = StepInputs(program.kv, (blocks,) * len(program.kv), max_tokens=512, num_slots=SLOTS, max_model_len=LENGTH)
for table in inputs.tables:
    table[:] = np.arange(blocks).reshape(table.shape)
runner = CpuProgram(program, inputs, threads=2)
table = SamplingTable(SLOTS, VOCAB)
for slot in range(SLOTS):
    on = slot % 2
    table.set(slot, SamplingParams(temperature=slot % 3, top_p=1 - on / 9, top_k=9 * on, min_p=on / 99,
        repetition_penalty=1 + on / 9, frequency_penalty=on / 9, logit_bias={3: 1.0} if on else {}),
        seed=slot, choice=0, prompt_len=2)
sampler = CpuSampler(table, kernels=runner.kernels, pool=runner.pool)
steps, samples = runner._program, sampler._sampler = Counted(runner._program), Counted(sampler._sampler)
history = np.zeros((SLOTS, LENGTH), np.int32)

def step(*parts):
    set_entries(inputs, [(slot, (start, count)) for slot, start, count in parts])
    n = inputs.logits = len(parts)
    inputs.logit_rows[:n] = inputs.entry_row[:n] + inputs.entry_count[:n] - 1
    slots, at = inputs.entry_slot[:n], inputs.entry_start[:n] + inputs.entry_count[:n]
    masks = TokenMasks(np.zeros(n, np.int32), np.full((1, -(-VOCAB // 32)), 0xFFFFFFF0, np.uint32))
    logits = runner.run()
    sampler.run(0, logits, slots, at, np.ones(n, bool), np.full(n, 3, np.int32), history, masks)
    return steps.allocations, samples.allocations

def most(*many):
    return [max(counts) for counts in zip(*many)]

for _ in range(8):  # a thread's first task of a matrix makes that thread's room
    step((0, 0, 512))
found = {
    "a chunk": most(*(step((0, at, 200)) for at in (512, 712))),
    "one row": most(*(step((0, at, 1)) for at in range(1000, 1040))),
    "three rows": most(*(step(*((slot, at, 1) for slot in range(3))) for at in range(500, 530))),
    "32 rows": most(*(step(*((slot, at, 1) for slot in range(SLOTS))) for at in range(1000, 1030))),
    "rows beside a chunk": most(*(step(*((slot, at, 1) for slot in range(9)), (9, 0, 64)) for at in range(20))),
}
before = counter.value
np.zeros(1 << 12)
print(json.dumps([found, counter.value - before]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is counted by the GNU C library's names")
@pytest.mark.parametrize(("scheme", "kv_dtype"), [("q4", "bf16"), ("q8", "int8"), ("bf16", "fp32")])
def test_a_step_allocates_nothing(tmp_path, scheme, kv_dtype):
    compiler = os.environ.get("CXX") or shutil.which("cc") or shutil.which("c++")
    library = tmp_path / "counter.so"
    assert compiler, "kernels cannot have been built without a compiler"
    command = [compiler, "-x", "c", "-O1", "-shared", "-fPIC", "-", "-o", library]
    subprocess.run(command, input=COUNTER, text=True, check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, library, scheme, kv_dtype],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONMALLOC": "pymalloc", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found, seen = json.loads(done.stdout)
    assert seen > 0, "the counter counts nothing"
    assert not any(sum(counts) for counts in found.values()), f"allocations of (program, sampling): {found}"

"""No token may change, whatever the family: the log-probabilities of a sequence are the same bits alone in one step and
among others, in chunks, on several threads; and a model with windows runs in a pool that holds little more than them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.gguf_models import write_family_gguf
from tests.models.test_families import CHECKPOINTS
from tests.models_for_tests import make_checkpoint, program_log_probabilities, step_inputs

from headrace.core.config import Config
from headrace.core.kv_layout import KVDtype
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.models.loader import load_model
from headrace.models.lowering import lower
from headrace.ops.cpu import CpuProgram
from headrace.ops.program import Program
from headrace.ops.registry import set_entries
from headrace.worker.assembly import assemble
from headrace.worker.devices import cpu_device

LENGTH = 40
SLOTS = 3
TOKENS = np.random.default_rng(0).integers(3, 320, (SLOTS, LENGTH)).astype(np.int32)
# Steps of (slot, tokens): sequences begin and go on at different times, in chunks of many sizes.
SCHEDULE = (((0, 7),), ((1, 1), (0, 20)), ((2, 33), (1, 2), (0, 1)), ((1, 37), (0, 12), (2, 1)), ((2, 6),))
FAMILIES = [
    "mistral",
    "qwen3",
    "gemma2",
    "gemma3, scaled global rope",
    "phi4, partial rotary",
    "olmo2",
    "granite",
    "smollm3, windows",
    "mixtral",
    "qwen3_moe, normalized, some layers dense",
    "olmoe",
]


def program_of(folder: Path, kv_dtype: KVDtype) -> Program:
    loaded = load_model(folder)
    return lower(loaded.spec, loaded.weights, quantization="auto", kv_dtype=kv_dtype, block_size=16, max_positions=96)


class Device:
    def __init__(self, program: Program, threads: int) -> None:
        self.inputs = step_inputs(program, LENGTH, num_slots=SLOTS)
        self.program = CpuProgram(program, self.inputs, threads=threads)

    def step(self, parts: list[tuple[int, int, int]]) -> list[np.ndarray]:
        """parts: (slot, start, count); logits of each."""
        set_entries(self.inputs, [(slot, (start, count)) for slot, start, count in parts])
        rows = self.inputs.rows
        self.inputs.tokens[:rows] = np.concatenate([TOKENS[s, start : start + n] for s, start, n in parts])
        self.inputs.logit_rows[:rows] = np.arange(rows)
        self.inputs.logits = rows
        return np.split(self.program.run().copy(), np.cumsum([n for _, _, n in parts])[:-1])


def check_schedule(path: Path, kv_dtype: KVDtype) -> None:
    one = Device(program_of(path, kv_dtype), threads=1)
    alone = [one.step([(slot, 0, LENGTH)])[0] for slot in range(SLOTS)]
    device = Device(program_of(path, kv_dtype), threads=2)
    done = [0] * SLOTS
    for step in SCHEDULE:
        parts = [(slot, done[slot], count) for slot, count in step]
        for (slot, start, count), logits in zip(parts, device.step(parts), strict=True):
            expected = alone[slot][start : start + count]
            np.testing.assert_array_equal(logits.view(np.uint32), expected.view(np.uint32))
            done[slot] += count
    assert done == [LENGTH] * SLOTS


@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_any_schedule_gives_the_same_bits(tmp_path: Path, name: str, kv_dtype: KVDtype) -> None:
    make_checkpoint(tmp_path, **CHECKPOINTS[name])
    check_schedule(tmp_path, kv_dtype)


@pytest.mark.parametrize(
    ("name", "stored"), [("mixtral", "Q4_0"), ("olmoe", "Q8_0"), ("gemma2", "Q8_0"), ("olmo2", "Q4_0")]
)
def test_quantized_weights_keep_to_it_and_to_the_reference(tmp_path: Path, name: str, stored: str) -> None:
    """In the mean: where the last bits differ, an activation is rounded the other way now and then, and in a model this
    small that shows."""
    path = tmp_path / "model.gguf"
    settings = CHECKPOINTS[name] | {"sharpness": 1.0, "head_dim": 16}
    write_family_gguf(path, make_checkpoint(tmp_path, **settings), gguf.GGMLQuantizationType[stored])
    check_schedule(path, "bf16")
    expected = program_log_probabilities(program_of(path, "fp32"), TOKENS[0])
    actual = program_log_probabilities(program_of(path, "fp32"), TOKENS[0], provider=CpuProgram)
    assert np.abs(actual - expected).mean() <= 0.02


def engine_of(program: Program, windows: tuple[int | None, ...], num_blocks: tuple[int, ...]) -> Engine:
    executor = assemble(
        program,
        cpu_device(1),
        num_slots=4,
        num_blocks=num_blocks,
        windows=windows,
        max_model_len=96,
        max_tokens=16,
    )
    return Engine(executor, Config(max_num_seqs=4, max_num_batched_tokens=16, enable_prefix_caching=False))


def tokens_of(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request, 0.0)
    while engine.has_work:
        for delta in engine.step(lambda: 0.0):
            out[delta.request_id] += delta.token_ids
    assert engine.stats().blocks_used == 0
    return out


def test_blocks_behind_a_window_are_freed_and_change_nothing(tmp_path: Path) -> None:
    """Four sequences of 90 positions, 6 blocks each without a window; the group with the window of 20 has 8 blocks
    for all of them, the other as many as 2 sequences need, so that requests are preempted too."""
    settings: dict[str, Any] = CHECKPOINTS["gemma2"]
    make_checkpoint(tmp_path, **settings)
    groups = load_model(tmp_path).spec.kv_groups
    windows = tuple(group.window for group in groups)
    assert windows == (20, None)
    params = SamplingParams(temperature=1.0, max_tokens=60)
    requests = [Request(f"r{i}", TOKENS[i % SLOTS, : 30 - i].tolist(), params, 60, seed=i) for i in range(4)]
    ample = engine_of(program_of(tmp_path, "bf16"), windows, (40, 40))
    alone = {r.request_id: tokens_of(ample, [r])[r.request_id] for r in requests}
    tight = engine_of(program_of(tmp_path, "bf16"), windows, (8, 12))
    assert tokens_of(tight, requests) == alone
    assert tight.stats().preemptions > 0
    assert all(len(tokens) == 60 for tokens in alone.values())

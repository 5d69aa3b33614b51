"""Through swap, recompute, host, disk and restart the real kernels give, bit for bit with their log-probabilities, what
they give without any of it."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_models import VOCAB, tiny_program

from headrace.core.config import Config
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.models.loader import load_model
from headrace.models.lowering import lower
from headrace.worker.assembly import DiskSpace, assemble
from headrace.worker.devices import cpu_device

MAX_LEN = 128
BLOCK = 16
ENOUGH = MAX_LEN // BLOCK


def device(program, windows, blocks, *, host=0, disk=None, depth=1):
    groups = len(program.kv)
    return assemble(
        dataclasses.replace(program, matrices=dict(program.matrices)),
        cpu_device(1),
        num_slots=4,
        num_blocks=(blocks,) * groups,
        windows=windows,
        max_model_len=MAX_LEN,
        max_tokens=64,
        depth=depth,
        host_blocks=(host,) * groups if host else (),
        disk=None if disk is None else DiskSpace(disk, 1 << 30),
    )


def engine_on(executor, *, caching=True, depth=1):
    config = Config(max_num_batched_tokens=64, enable_prefix_caching=caching, pipeline_depth=depth)
    return Engine(executor, config, disk=executor.disk, fingerprint="tiny")


def conversations(count: int, vocab_size: int = VOCAB) -> list[list[int]]:
    draw = random.Random(5)
    base = [draw.randrange(vocab_size) for _ in range(24)]
    tails = [[draw.randrange(vocab_size) for _ in range(14)] for _ in range(count)]
    return [[*base[: draw.choice([0, 9, 16, 24])], *tail] for tail in tails]


def run(engine: Engine, requests: list[Request], swap_every: int = 0) -> dict[str, Any]:
    """Tokens and log-probabilities of each; every few steps, one that runs is swapped out."""
    out: dict[str, Any] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request, 0.0)
    steps = 0
    while engine.has_work:
        steps += 1
        running = engine._slots.order
        if swap_every and steps % swap_every == 0 and len(running) > 1:
            roster = engine._scheduler._roster
            roster.preempt(engine._slots[int(running[-1])], swap=True)
        for delta in engine.step(lambda: 0.0):
            out[delta.request_id] += zip(delta.token_ids, delta.logprobs or [], strict=False)
    return out


def turn(name: str, prompt: list[int], index: int) -> Request:
    params = SamplingParams(temperature=0.8, max_tokens=12, logprobs=2)
    return Request(f"{name}{index}", prompt, params, 12, seed=index)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("windows", [(None, None), (None, 20)], ids=["full", "a window"])
def test_conversations_through_all_tiers_and_a_restart(windows, depth, tmp_path: Path):
    program = tiny_program("q8", kv_dtype="int8", windows=windows)
    check_conversations(program, tuple(dict.fromkeys(windows)), depth, 6, VOCAB, tmp_path)


def test_the_default_model_through_all_tiers_and_a_restart(default_model, tmp_path: Path):
    loaded = load_model(default_model)
    program = lower(
        loaded.spec,
        loaded.weights,
        quantization="auto",
        kv_dtype="bf16",
        block_size=BLOCK,
        max_positions=MAX_LEN,
    )
    check_conversations(program, (None,), 2, 4, program.vocab_size, tmp_path)


def check_conversations(program, groups, depth: int, count: int, vocab_size: int, tmp_path: Path) -> None:
    """Three turns of each, with a restart before the last."""
    plain = engine_on(device(program, groups, 200), caching=False)
    # A pool for hardly more than one, a host for most of them, and the disk for all.
    executors = []

    def tight():
        executors.append(device(program, groups, ENOUGH + 4, host=30, disk=tmp_path, depth=depth))
        return engine_on(executors[-1], depth=depth)

    prompts = conversations(count, vocab_size)
    engine, hits = tight(), 0
    for round_of_turns in range(3):
        requests = [turn(f"t{round_of_turns}-", prompt, i) for i, prompt in enumerate(prompts)]
        whole = run(plain, requests)
        assert run(engine, requests, swap_every=5) == whole
        hits += engine._scheduler.counters.disk_tokens + engine._scheduler.counters.host_tokens
        prompts = [
            [*prompt, *(token for token, _ in whole[request.request_id]), 7][: MAX_LEN - 13]
            for prompt, request in zip(prompts, requests, strict=True)
        ]
        if round_of_turns == 1:
            engine.settle(lambda: 0.0, 10.0)
            executors[-1].close()
            engine = tight()
    assert hits > 100
    assert engine._scheduler.counters.disk_tokens > 0
    executors[-1].close()


def test_a_damaged_disk_is_not_believed(tmp_path: Path):
    program = tiny_program("bf16", kv_dtype="bf16")
    plain = engine_on(device(program, (None,), 200), caching=False)
    requests = [turn("a", prompt, i) for i, prompt in enumerate(conversations(3))]
    whole = run(plain, requests)
    first = device(program, (None,), 200, host=50, disk=tmp_path)
    engine = engine_on(first)
    assert run(engine, requests) == whole
    engine.settle(lambda: 0.0, 10.0)
    first.close()
    files = sorted(tmp_path.glob("*.kv"))
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x40
        path.write_bytes(data)
    second = device(program, (None,), 200, host=50, disk=tmp_path)
    engine = engine_on(second)
    assert run(engine, requests) == whole
    assert engine._scheduler.counters.disk_tokens == 0
    second.close()

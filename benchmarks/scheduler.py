"""What the scheduler costs: schedule and update of one step in steady decode, with staggered lengths and prefix
caching on, without any model. The executor only answers; what it takes is not counted.

    python benchmarks/scheduler.py [--running 64 256 1024] [--steps 400] [--depth 1] [--json FILE]

schedule_us ends with the Batch, update_us with the messages to clients; step_us is their sum.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.batch import Batch, BatchOutput
from headrace.core.request import Request, SamplingParams
from headrace.policy.block_manager import BlockManager
from headrace.policy.queue import FirstComeQueue
from headrace.policy.scheduler import Scheduler
from headrace.policy.slots import Slots

WARM_UP = 10


def answer(batch: Batch) -> BatchOutput:
    rows = len(batch.logit_entry)
    return BatchOutput(batch.step, np.full(rows, 7, np.int32), np.zeros(rows, np.bool_))


def measure(running: int, prompt_len: int, steps: int, depth: int, block_size: int = 16) -> dict[str, Any]:
    """Percentiles of a step's cost in microseconds, with `running` requests in decode."""
    max_model_len = prompt_len + block_size + 2 * steps + 64
    num_blocks = running * (max_model_len // block_size + 2)
    budget = running * (prompt_len + block_size)
    blocks = BlockManager(
        num_slots=running,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=(num_blocks,),
        windows=(None,),
        reach=budget * depth,
        caching=True,
    )
    scheduler = Scheduler(Slots(running, max_model_len), blocks, FirstComeQueue(), budget=budget)
    generator = np.random.default_rng(0)
    params = SamplingParams(max_tokens=None, temperature=0.0)
    for i in range(running):
        length = prompt_len + i % block_size
        prompt = generator.integers(8, 40000, length).tolist()
        scheduler.add(Request(str(i), prompt, params, max_tokens=2 * steps + 32, seed=0, eos_ids=(0,)))
    under_way: list[Batch] = []
    schedule_ns, update_ns = [], []
    for step in range(steps + WARM_UP):
        while len(under_way) < depth:
            began = time.perf_counter_ns()
            batch = scheduler.schedule()
            scheduled = time.perf_counter_ns() - began
            assert batch is not None
            under_way.append(batch)
        output = answer(under_way.pop(0))
        began = time.perf_counter_ns()
        sent = scheduler.update(output)
        updated = time.perf_counter_ns() - began
        if step >= WARM_UP:
            assert len(sent) == running
            schedule_ns.append(scheduled)
            update_ns.append(updated)
    schedule, update = np.array(schedule_ns) / 1000, np.array(update_ns) / 1000
    return {
        "running": running,
        "schedule_us": _summary(schedule),
        "update_us": _summary(update),
        "step_us": _summary(schedule + update),
    }


def _summary(values: np.ndarray) -> dict[str, float]:
    return {
        "mean": round(float(values.mean()), 2),
        "p50": round(float(np.percentile(values, 50)), 2),
        "p99": round(float(np.percentile(values, 99)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256, 1024], help="requests in decode")
    parser.add_argument("--prompt-len", type=int, default=256, help="tokens in a prompt; staggered over a block")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--depth", type=int, default=1, help="steps that may be under way")
    parser.add_argument("--json", type=Path, help="also write the report there")
    given = parser.parse_args()
    # As the engine's process does (launch.main).
    gc.freeze()
    gc.set_threshold(50_000)
    results = [measure(n, given.prompt_len, given.steps, given.depth) for n in given.running]
    for result in results:
        parts = [f"{result['running']:>5} running"]
        for name in ("schedule_us", "update_us", "step_us"):
            one = result[name]
            parts.append(f"{name[:-3]} {one['mean']:8.1f} us (p50 {one['p50']:.1f}, p99 {one['p99']:.1f})")
        print("   ".join(parts))
    if given.json is not None:
        given.json.write_text(json.dumps({"depth": given.depth, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What continuous batching and paged memory bring, seen on NullExecutor: the same mixed-length load served in fixed
groups that wait for their longest member, and by the engine; and the memory it holds beside what reserving the
longest possible sequence for each request would take. Counts steps and blocks, so it comes out the same anywhere.

    python benchmarks/batching.py [--requests 256] [--slots 16] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from headrace.core.config import Config
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.null_executor import NullExecutor

BLOCK_SIZE = 16
MAX_MODEL_LEN = 512
Report = dict[str, dict[str, float]]


def load(count: int, seed: int = 0) -> list[Request]:
    """Prompts of 8 to 128 tokens; outputs mostly short, some long, as chats are."""
    draw = random.Random(seed)
    requests = []
    for i in range(count):
        output = draw.randint(8, 48) if draw.random() < 0.8 else draw.randint(128, 256)
        prompt = [draw.randrange(1000) for _ in range(draw.randint(8, 128))]
        requests.append(Request(f"r{i}", prompt, SamplingParams(max_tokens=output), output, seed=i))
    return requests


def compare(count: int, slots: int) -> Report:
    """utilization: generated tokens per slot and step. waste: share of the reserved memory that holds no token."""
    return {
        "static": _serve([load(count)[i : i + slots] for i in range(0, count, slots)], slots),
        "continuous": _serve([load(count)], slots),
    } | _memory(count, slots)


def _engine(slots: int, num_blocks: int) -> Engine:
    has = Capacity(slots, BLOCK_SIZE, (num_blocks,), (None,), MAX_MODEL_LEN, 1000)
    return Engine(NullExecutor(has), Config(max_num_batched_tokens=slots * 128, max_queued_requests=100_000))


def _serve(groups: list[list[Request]], slots: int) -> dict[str, float]:
    """Serve each group to its end before the next is begun."""
    engine = _engine(slots, slots * MAX_MODEL_LEN // BLOCK_SIZE)
    for group in groups:
        for request in group:
            engine.add(request, 0.0)
        while engine.has_work:
            engine.step(lambda: 0.0)
    stats = engine.stats()
    return {
        "steps": stats.step,
        "tokens": stats.generated_tokens,
        "utilization": round(stats.generated_tokens / (stats.step * slots), 4),
    }


def _memory(count: int, slots: int) -> Report:
    """The same pool: how many requests run at once if each reserves MAX_MODEL_LEN, and if each has its blocks."""
    num_blocks = slots * MAX_MODEL_LEN // BLOCK_SIZE
    engine = _engine(slots * 16, num_blocks)
    for request in load(count):
        engine.add(request, 0.0)
    most = steps = running = used = 0
    while engine.has_work:
        engine.step(lambda: 0.0)
        stats = engine.stats()
        most = max(most, stats.running)
        if stats.waiting:
            steps, running, used = steps + 1, running + stats.running, used + stats.blocks_used
    lengths = [len(request.prompt_ids) + request.max_tokens for request in load(count)]
    paged = [-(-length // BLOCK_SIZE) * BLOCK_SIZE for length in lengths]
    return {
        "contiguous": {
            "requests_at_once": slots,
            "waste": round(1 - sum(lengths) / (count * MAX_MODEL_LEN), 4),
        },
        "paged": {
            "requests_at_once": round(running / steps, 1) if steps else most,
            "most_at_once": most,
            "pool_used": round(used / (steps * num_blocks), 4) if steps else 0.0,
            "waste": round(1 - sum(lengths) / sum(paged), 4),
            "preemptions": stats.preemptions,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--slots", type=int, default=16, help="requests that a batch holds")
    parser.add_argument("--json", type=Path, help="also write the report there")
    given = parser.parse_args()
    report = compare(given.requests, given.slots)
    for name, values in report.items():
        print(f"{name:<11} " + "  ".join(f"{key} {value}" for key, value in values.items()))
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()

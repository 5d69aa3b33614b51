"""What the scheduler costs over a grid of loads, each measured as `headrace bench scheduler` does; beside vLLM's own
scheduler in the same run, turn by turn, if the Python of its virtual environment is named.

    python benchmarks/scheduler.py [--running 64 256 1024] [--rounds 3] [--vllm PYTHON FOLDER] [--json FILE]

FOLDER has the config.json of any model that vLLM knows. Of several rounds the one with the median mean counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from headrace.bench.scheduler import Load, measure_scheduler
from headrace.collector import settle

PEER = Path(__file__).resolve().parent / "peers" / "run_vllm_scheduler.py"
COSTS = ("schedule_us", "update_us", "step_us")


def loads(running: list[int], prompt_len: int, steps: int, depth: int) -> dict[str, Load]:
    """The grid, by name: steady decode, and with the first size waiting requests, changes and hits."""
    size = {"prompt_len": prompt_len, "steps": steps, "depth": depth}
    grid = {f"{n} running": Load(n, **size) for n in running}
    first = running[0]
    grid[f"{first} running, 10,000 queued"] = Load(first, queued=10_000, **size)
    changes = max(1, first // 16)
    for rate in (0.0, 0.5, 0.99):
        name = f"{first} running, {changes} change, {rate:.0%} hits"
        grid[name] = Load(first, batch_changes=changes, hit_rate=rate, **size)
    return grid


def vllm(python: str, folder: str, load: Load) -> dict[str, Any]:
    """The same costs of vLLM's scheduler in a process of its own."""
    arguments = [python, str(PEER), folder, str(load.running), str(load.prompt_len), str(load.steps)]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{ran.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return sorted(rounds, key=lambda result: result["step_us"]["mean"])[len(rounds) // 2]


def line(name: str, result: dict[str, Any]) -> str:
    parts = [f"{name:<36}"]
    for cost in COSTS:
        one = result[cost]
        parts.append(f"{cost[:-3]} {one['mean']:8.1f} us (p50 {one['p50']:.1f}, p99 {one['p99']:.1f})")
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256, 1024], help="requests in decode")
    parser.add_argument("--prompt-len", type=int, default=256, help="tokens in a prompt; staggered over a block")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--depth", type=int, default=1, help="steps that may be under way")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--vllm", nargs=2, metavar=("PYTHON", "FOLDER"), help="measure vLLM's scheduler beside it")
    parser.add_argument("--json", type=Path, help="also write the report there")
    given = parser.parse_args()
    settle()
    report: dict[str, dict[str, Any]] = {}
    for name, load in loads(given.running, given.prompt_len, given.steps, given.depth).items():
        ours, theirs = [], []
        for _ in range(given.rounds):
            ours.append(measure_scheduler(load, lambda step: None))
            if given.vllm and not load.queued and not load.batch_changes:
                theirs.append(vllm(*given.vllm, load))
        report[name] = {"headrace": median(ours)}
        print(line(name, report[name]["headrace"]))
        if theirs:
            report[name]["vllm"] = median(theirs)
            ratio = report[name]["vllm"]["step_us"]["mean"] / report[name]["headrace"]["step_us"]["mean"]
            print(line("  vLLM", report[name]["vllm"]), f" {ratio:.1f} times")
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()

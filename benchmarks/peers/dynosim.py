"""The simulator beside NVIDIA's DynoSim (Rust, `pip install ai-dynamo==1.4.2` in a virtual environment of its own): the
same trace at the same rate over as many replicas, each with its router that knows prefixes, in turn. Printed are the
processor's seconds of each whole process, medians of the rounds, and how much of the prompts each found cached.

    python benchmarks/peers/dynosim.py --dynosim PYTHON --trace mooncake_conversation.jsonl.gz --json dynosim.json

Blocks are 512 tokens in both, which is what the trace's contents are. DynoSim has its own timing and memory (16,384
blocks a worker); Headrace has llama-3-8b on one H100 a replica.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BLOCK_SIZE = 512
SIMULATED = ["--model", "llama-3-8b", "--gpu", "h100", "--router", "prefix", "--block-size", str(BLOCK_SIZE)]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dynosim", metavar="PYTHON", required=True, help="of the environment that has ai-dynamo")
    parser.add_argument("--trace", type=Path, required=True, help="in Mooncake's format")
    parser.add_argument("--rate-multiplier", type=float, default=128)
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def run(command: list[str], report: Path) -> tuple[float, dict[str, Any]]:
    """The processor's seconds of the process and its children, and what it reported."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env={**os.environ, "DYN_LOG": "error"}, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, json.loads(report.read_text())


def turn(given: argparse.Namespace, trace: Path, replicas: int, folder: Path) -> dict[str, float]:
    report, count, rate = folder / "report.json", str(replicas), str(given.rate_multiplier)
    dynosim = [given.dynosim, "-m", "dynamo.replay", str(trace), "--num-workers", count, "--replay-mode", "offline"]
    dynosim += ["--router-mode", "kv_router", "--arrival-speedup-ratio", rate, "--report-json", str(report)]
    theirs_s, theirs = run([*dynosim, "--extra-engine-args", json.dumps({"block_size": BLOCK_SIZE})], report)
    headrace = [sys.executable, "-m", "headrace", "simulate", "--trace", str(trace), "--replicas", count]
    ours_s, ours = run([*headrace, "--rate-multiplier", rate, *SIMULATED, "--json", str(report)], report)
    if theirs["completed_requests"] != ours["finished"]:
        raise SystemExit(f"DynoSim served {theirs['completed_requests']} requests, Headrace {ours['finished']}")
    return {
        "dynosim_s": theirs_s,
        "headrace_s": ours_s,
        "dynosim_hit_rate": theirs["prefix_cache_reused_ratio"],
        "headrace_hit_rate": ours["prefix_hit_rate"],
    }


def main() -> None:
    given = read_arguments()
    turns: dict[int, list[dict[str, float]]] = {replicas: [] for replicas in given.replicas}
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "trace.jsonl"
        stored = given.trace.read_bytes()
        trace.write_bytes(gzip.decompress(stored) if given.trace.suffix == ".gz" else stored)
        for _ in range(given.rounds):
            for replicas in given.replicas:
                turns[replicas].append(turn(given, trace, replicas, Path(name)))
    print("| replicas | DynoSim, s | Headrace, s | DynoSim / Headrace | prompt tokens cached: DynoSim | Headrace |")
    print("|---|---|---|---|---|---|")
    found = []
    for replicas, taken in turns.items():
        middle = {key: statistics.median(one[key] for one in taken) for key in taken[0]}
        ratio = statistics.median(one["dynosim_s"] / one["headrace_s"] for one in taken)
        found.append({"replicas": replicas, **middle, "ratio": ratio})
        hits = f"{middle['dynosim_hit_rate']:.1%} | {middle['headrace_hit_rate']:.1%}"
        print(f"| {replicas:,} | {middle['dynosim_s']:.1f} | {middle['headrace_s']:.1f} | {ratio:.2f} | {hits} |")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

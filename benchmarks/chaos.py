"""How much longer good requests take among bad neighbours: the load of tests/test_chaos.py (clients that leave, reset,
send rubbish or do not read), with and without the neighbours, in turns; then with an engine that is killed twice.

    python benchmarks/chaos.py [--requests 96] [--rounds 3] [--json FILE]

Every answer is held against the same request's on a quiet server. Run it from the repository's root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.test_chaos import KILLS_AFTER, chaos, in_use, quiet
from tests.test_serving import serving, wait_for

from headrace.core.config import Config
from headrace.models.sources import locate_model


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = Path(locate_model(Config()).model)
    calm: list[float] = []
    wild: list[float] = []
    with serving(model, num_kv_blocks=160, max_num_seqs=8) as (url, process):
        api = psutil.Process(process.pid)
        expected = asyncio.run(quiet(url, options.requests))
        memory = api.memory_info().rss
        for _ in range(options.rounds):
            calm += asyncio.run(chaos(url, process, expected, hostile=False, kills=()))
            wild += asyncio.run(chaos(url, process, expected, kills=()))
            wait_for(lambda: in_use(url) == 0, 60)
            grown = (api.memory_info().rss - memory) / 2**20
            print(f"p99 calm {p99(calm):.2f} s, chaos {p99(wild):.2f} s, memory {grown:+.1f} MiB", flush=True)
        killed = asyncio.run(chaos(url, process, expected, kills=KILLS_AFTER))
        wait_for(lambda: in_use(url) == 0, 60)
    figures = {
        "calm_p50_s": statistics.median(calm),
        "calm_p99_s": p99(calm),
        "chaos_p50_s": statistics.median(wild),
        "chaos_p99_s": p99(wild),
        "p99_ratio": p99(wild) / p99(calm),
        "killed_max_s": max(killed),
        "memory_grown_mib": grown,
    }
    print(json.dumps(figures))
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()

"""How far simulated latencies are from measured ones on this machine: a recorded load, scaled to what a processor can
do, through the CPU engine in real time and through the simulator.

    python benchmarks/fidelity.py --trace FILE [--model MODEL] [--requests 40] [--rate 2.5] [--scale 8] [--rounds 3]
                                  [--json FILE]

The trace's first requests are served; those after them calibrate the latency model. Lengths are divided by --scale,
times so that --rate requests come a second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from headrace.commands.report import show
from headrace.core.config import DEFAULT_MODEL, Config
from headrace.launch import build_engine
from headrace.models.sources import locate_model
from headrace.simulate.fidelity import measure_fidelity
from headrace.workload.demand import Demand
from headrace.workload.traces import read_trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rate", type=float, default=2.5)
    parser.add_argument("--scale", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    demands = scaled(read_trace(asked.trace, 2 * asked.requests), asked.scale, asked.rate)
    served, others = demands[: asked.requests], demands[asked.requests :]
    longest = max(one.input_len + one.output_len for one in demands)
    config = locate_model(
        Config(
            model=asked.model, max_num_seqs=32, max_model_len=longest, max_num_batched_tokens=512, step_ring=10_000
        ).resolve()
    )
    learning, serving = build_engine(config), build_engine(config)
    with click.progressbar(length=asked.rounds * len(demands), label="requests", file=sys.stderr) as bar:
        report = measure_fidelity(
            learning.engine,
            serving.engine,
            serving.capacity,
            served,
            [replace(one, at=one.at - others[0].at) for one in others],
            config=serving.config,
            rounds=asked.rounds,
            progress=bar.update,
        )
    show({"model": config.model, "rate_per_s": asked.rate, "scale": asked.scale, **report}, asked.json)


def scaled(demands: Sequence[Demand], scale: int, rate: float) -> list[Demand]:
    faster = (len(demands) - 1) / demands[-1].at / rate
    return [
        replace(
            one,
            at=one.at * faster,
            prompt=tuple((name, -(-length // scale)) for name, length in one.prompt),
            output_len=max(1, one.output_len // scale),
        )
        for one in demands
    ]


if __name__ == "__main__":
    main()

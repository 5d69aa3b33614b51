"""headrace simulate: a fleet serves a recorded or drawn load in virtual time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from headrace.commands.report import json_option, show, write_json
from headrace.simulate.asking import ask_fleet, ask_load, natural_block_size
from headrace.simulate.result import Slo
from headrace.simulate.simulator import ROUTERS
from headrace.simulate.simulator import simulate as run_simulation
from headrace.workload.synthetic import KINDS


@click.command()
@click.option("--model", required=True, help="A published model by name, or the path of one that is here.")
@click.option("--gpu", required=True, help="What each replica runs on: a100, h100, h200, b200, l40s, mi300x.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Requests as recorded: Mooncake's JSON lines, Azure's, BurstGPT's or our CSV, gzipped if .gz.",
)
@click.option("--workload", help=f"Instead of --trace, requests drawn at random: {', '.join(KINDS)}.")
@click.option("--rate", type=float, help="Requests a second of --workload. [1 for each replica]")
@click.option("--users", type=int, help="Instead of --rate, so many who wait for their answers.")
@click.option("--requests", type=click.IntRange(min=1), help="Only the first so many. [all; 1000 of --workload]")
@click.option("--rate-multiplier", type=float, default=1.0, show_default=True, help="Arrivals come so much faster.")
@click.option("--replicas", type=int, default=1, show_default=True)
@click.option("--router", default="round-robin", show_default=True, help=f"One of {', '.join(ROUTERS)}.")
@click.option("--tensor-parallel-size", type=int, default=1, show_default=True, help="GPUs of a replica.")
@click.option("--precision", default="bf16", show_default=True, help="Of the weights: bf16, fp8, int8, int4, fp4.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto (bf16), fp8, int8.")
@click.option("--max-num-seqs", type=int, default=256, show_default=True, help="Requests that run at once.")
@click.option("--max-num-batched-tokens", type=int, default=8192, show_default=True, help="Tokens of a step.")
@click.option("--max-model-len", type=int, help="Longest prompt and answer. [what the model allows]")
@click.option("--block-size", type=int, help="Tokens of a KV block. [512 if the trace names blocks of 512, else 16]")
@click.option("--gpu-memory-utilization", type=float, default=0.9, show_default=True)
@click.option("--slo-ttft-ms", type=float, help="A good request's longest time to the first token.")
@click.option("--slo-tpot-ms", type=float, help="A good request's longest time of each token after it.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the load and of the router's draws.")
@json_option
def simulate(
    trace: Path | None,
    workload: str | None,
    rate: float | None,
    users: int | None,
    requests: int | None,
    rate_multiplier: float,
    router: str,
    block_size: int | None,
    slo_ttft_ms: float | None,
    slo_tpot_ms: float | None,
    seed: int,
    json_file: Path | None,
    **fleet: Any,
) -> None:
    """Latency, goodput and cache hits of a fleet under a load, with the real scheduler, cache and router."""
    demands = ask_load(
        trace, workload, rate=rate, users=users, requests=requests, replicas=fleet["replicas"], seed=seed
    )
    asked = ask_fleet(**fleet, block_size=block_size or natural_block_size(demands))
    with click.progressbar(length=len(demands), label="requests", file=sys.stderr) as bar:
        result = run_simulation(
            demands,
            asked,
            router=router,
            seed=seed,
            rate_multiplier=rate_multiplier,
            slo=Slo(slo_ttft_ms, slo_tpot_ms),
            progress=bar.update,
        )
    report = {"block_size": asked.block_size, **result.to_dict()}
    show({name: value for name, value in report.items() if name != "replicas"}, None)
    write_json(report, json_file)

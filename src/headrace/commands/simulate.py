"""headrace simulate: a fleet serves a recorded or drawn load in virtual time."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from headrace.bench.picture import drawing
from headrace.commands.pools import pool_options
from headrace.commands.report import EXISTING_FILE, NewFile, counting, json_option, show, write_json
from headrace.simulate.asking import Asked
from headrace.simulate.kinds import ROUTERS
from headrace.simulate.report import render
from headrace.simulate.result import Result
from headrace.simulate.simulator import STARTUP_S
from headrace.simulate.sweep import read_multipliers, sweep
from headrace.simulate.watch import Watch
from headrace.workload.demand import Demand
from headrace.workload.synthetic import KINDS


@click.command()
@click.option("--model", required=True, help="A published model by name, or the path of one that is here.")
@click.option("--gpu", required=True, help="What each replica runs on: a100, h100, h200, b200, l40s, mi300x.")
@click.option(
    "--trace",
    type=EXISTING_FILE,
    help="Requests as recorded: Mooncake's JSON lines, Azure's, BurstGPT's or our CSV, gzipped if .gz.",
)
@click.option("--workload", help=f"Instead of --trace, requests drawn at random: {', '.join(KINDS)}.")
@click.option("--rate", type=float, help="Requests a second of --workload. [1 for each replica]")
@click.option("--users", type=int, help="Instead of --rate, so many who wait for their answers.")
@click.option("--requests", type=int, help="Only the first so many. [all; 1000 of --workload]")
@click.option("--rate-multiplier", type=float, default=1.0, show_default=True, help="Arrivals come so much faster.")
@click.option("--replicas", type=int, default=1, show_default=True)
@pool_options
@click.option("--router", default="round-robin", show_default=True, help=f"One of {', '.join(ROUTERS)}.")
@click.option(
    "--kv-events-delay-ms", type=float, help="The prefix router is told what caches do, so late. [it guesses]"
)
@click.option("--tensor-parallel-size", type=int, default=1, show_default=True, help="GPUs of a replica.")
@click.option("--precision", default="bf16", show_default=True, help="Of the weights: bf16, fp8, int8, int4, fp4.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto (bf16), fp8, int8.")
@click.option("--max-num-seqs", type=int, default=256, show_default=True, help="Requests that run at once.")
@click.option("--max-num-batched-tokens", type=int, default=8192, show_default=True, help="Tokens of a step.")
@click.option("--max-model-len", type=int, help="Longest prompt and answer. [what the model allows]")
@click.option("--block-size", type=int, help="Tokens of a KV block. [512 if the trace names blocks of 512, else 16]")
@click.option("--gpu-memory-utilization", type=float, default=0.9, show_default=True)
@click.option(
    "--num-speculative-tokens", type=int, default=0, show_default=True, help="Guessed ahead in a step at most."
)
@click.option("--acceptance", type=float, help="Odds that a guess after right ones is. [0.6]")
@click.option("--speculative-model", help="Model that guesses, on the same GPUs. [guessing takes nothing]")
@click.option("--slo-ttft-ms", type=float, help="A good request's longest time to the first token.")
@click.option("--slo-tpot-ms", type=float, help="A good request's longest time of each token after it.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the load and of the router's draws.")
@click.option(
    "--fail",
    multiple=True,
    metavar="KIND:REPLICA@AT",
    help="dies:3@10, freezes:3@10+5, slow:3@10+60x4 or link:nic3@10+60x4, in seconds after the first arrival. May be "
    "repeated.",
)
@click.option(
    "--startup-s", type=float, default=STARTUP_S, show_default=True, help="Until a replica that died is there again."
)
@click.option("--sweep", "multipliers", metavar="1,2,4", help="Also simulate so many times this load, each in turn.")
@click.option(
    "--html", type=NewFile(), help="Also write a report with pictures there, one file; needs the `plan` extra."
)
@json_option
def simulate(multipliers: str | None, html: Path | None, json_file: Path | None, **given: Any) -> None:
    """Latency, goodput and cache hits of a fleet under a load, with the real scheduler, cache and router."""
    if html is not None:
        drawing("html", "html")  # else it would fail after the work
    several = read_multipliers(multipliers) if multipliers is not None else []
    asked = Asked(**given)
    demands, _, _ = asked.times(1.0)
    fleet = asked.fleet(demands)

    def run(demands: Sequence[Demand], faster: float, watch: Watch | None = None) -> Result:
        with counting(len(demands), "requests") as count:
            return asked.run(demands, fleet, faster=faster, progress=count, watch=watch)

    watch = None if html is None else Watch()
    report = {"block_size": fleet.block_size, **run(demands, 1.0, watch).to_dict()}
    if several:
        report["sweep"] = list(sweep(asked, several, run))
    shown = {name: value for name, value in report.items() if name not in ("replicas", "sweep")}
    if "transfer" in shown:
        shown["transfer"] = {name: value for name, value in shown["transfer"].items() if name != "links"}
    show(shown, None)
    for point in report.get("sweep", ()):
        click.echo(_line(point, asked.unit))
    write_json(report, json_file)
    if html is not None and watch is not None:
        chosen = {**dataclasses.asdict(asked), "fail": ", ".join(asked.fail)}
        html.write_text(render(chosen, report, watch, asked.unit), encoding="utf-8")


def _line(point: Mapping[str, Any], unit: str) -> str:
    ttft, tpot = point["ttft_ms"], point["tpot_ms"]
    return (
        f"x{point['multiplier']:g}: {point['offered']:,.4g} {unit} offered, {point['requests_per_s']:,.4g}/s served, "
        f"{point['goodput']:,.4g}/s good; TTFT {ttft['p50']:,.0f}, p99 {ttft['p99']:,.0f} ms; "
        f"TPOT {tpot['p50']:,.1f}, p99 {tpot['p99']:,.1f} ms"
    )

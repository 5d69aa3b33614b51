"""headrace bench: throughput and latency of an engine in this process, and the start-up of a server. Measures that need
more have files of their own (bench_ops.py, bench_scheduler.py)."""

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from headrace.bench.latency import measure_latency
from headrace.bench.startup import measure_startup
from headrace.bench.throughput import measure_throughput
from headrace.bench.workload import Shape
from headrace.commands.bench_ops import ops
from headrace.commands.bench_policies import policies
from headrace.commands.bench_replay import replay
from headrace.commands.bench_scheduler import scheduler
from headrace.commands.bench_serve import serve
from headrace.commands.bench_speculation import speculation
from headrace.commands.report import json_option, show
from headrace.commands.settings import takes_config
from headrace.core.config import Config
from headrace.engine.drive import drive
from headrace.launch import build_engine
from headrace.models.sources import locate_model


def _takes_shape(num_prompts: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The flags of a workload. --seed is Config's; here it also draws the prompts."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, default, text in (
            ("output-len", 128, "Tokens that each request generates."),
            ("input-len", 128, "Tokens of each prompt."),
            ("num-prompts", num_prompts, "Requests, all begun together."),
        ):
            command = click.option(f"--{name}", type=int, default=default, show_default=True, help=text)(command)
        return command

    return decorate


@click.group()
def bench() -> None:
    """Measure a model (throughput, latency, start-up, ops, speculation), a server under load (serve), or policy alone
    (scheduler, replay, policies)."""


bench.add_command(ops)
bench.add_command(policies)
bench.add_command(replay)
bench.add_command(scheduler)
bench.add_command(serve)
bench.add_command(speculation)


@bench.command()
@_takes_shape(num_prompts=32)
@json_option
@takes_config()
def throughput(num_prompts: int, input_len: int, output_len: int, json_file: Path | None, config: Config) -> None:
    """How many tokens a second MODEL makes when every request is there at the start."""
    _measure(measure_throughput, Shape(num_prompts, input_len, output_len, config.seed), json_file, config)


@bench.command()
@_takes_shape(num_prompts=1)
@json_option
@takes_config()
def latency(num_prompts: int, input_len: int, output_len: int, json_file: Path | None, config: Config) -> None:
    """How long one waits for MODEL's first token, and between tokens."""
    _measure(measure_latency, Shape(num_prompts, input_len, output_len, config.seed), json_file, config)


@bench.command()
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Starts; the median counts.")
@json_option
@takes_config()
def startup(rounds: int, json_file: Path | None, config: Config) -> None:
    """How long from `headrace serve MODEL` to its first answer. The model is fetched before."""
    settings = {k: v for k, v in dataclasses.asdict(locate_model(config)).items() if v is not None}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        times = [measure_startup(file, Path(folder) / "log") for _ in range(rounds)]
    show({"ready_ms": statistics.median(times)}, json_file)


def _measure(measure: Callable[..., Any], shape: Shape, json_file: Path | None, config: Config) -> None:
    """Build an engine that can queue the whole shape, run it, show what came."""
    queued = max(config.max_queued_requests, shape.num_prompts)
    built = build_engine(locate_model(dataclasses.replace(config, max_queued_requests=queued)))
    shape.check(built.ready.max_model_len)
    run = partial(drive, built.engine, clock=time.perf_counter)
    show(dataclasses.asdict(measure(run, shape, built.ready.vocab_size, time.perf_counter)), json_file)

"""headrace bench scheduler: what a step costs in policy, without any model."""

import sys
from pathlib import Path

import click

from headrace.bench.scheduler import Load, measure_scheduler
from headrace.collector import settle
from headrace.commands.report import json_option, show


@click.command()
@click.option("--running", type=int, default=256, show_default=True, help="Requests in decode.")
@click.option("--queued", type=int, default=0, show_default=True, help="Requests that wait all the while.")
@click.option(
    "--hit-rate", type=float, default=0.0, show_default=True, help="Share of each prompt that is cached: 0 to 1."
)
@click.option(
    "--batch-changes", type=int, default=0, show_default=True, help="Requests that end, and begin, in each step."
)
@click.option(
    "--prompt-len", type=int, default=256, show_default=True, help="Tokens in a prompt; staggered over a block."
)
@click.option("--steps", type=int, default=400, show_default=True, help="Steps to measure.")
@click.option("--depth", type=click.IntRange(min=1), default=1, show_default=True, help="Steps that may be under way.")
@json_option
def scheduler(
    running: int,
    queued: int,
    hit_rate: float,
    batch_changes: int,
    prompt_len: int,
    steps: int,
    depth: int,
    json_file: Path | None,
) -> None:
    """What beginning and finishing a step cost in policy, in microseconds. Needs no model."""
    load = Load(running, queued, hit_rate, batch_changes, prompt_len, steps, depth)
    settle()
    with click.progressbar(length=steps, label="steps", file=sys.stderr) as bar:
        result = measure_scheduler(load, bar.update)
    show(result, json_file)

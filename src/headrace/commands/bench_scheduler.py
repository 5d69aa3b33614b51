"""headrace bench scheduler: what a step costs in policy, without any model."""

from pathlib import Path
from typing import Any

import click

from headrace.bench.scheduler import Load, measure_scheduler
from headrace.collector import settle
from headrace.commands.report import counting, json_option, show


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
def scheduler(json_file: Path | None, **given: Any) -> None:
    """What beginning and finishing a step cost in policy, in microseconds. Needs no model."""
    load = Load(**given)
    settle()
    with counting(load.steps, "steps") as progress:
        result = measure_scheduler(load, progress)
    show(result, json_file)

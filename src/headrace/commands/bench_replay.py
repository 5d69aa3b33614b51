"""headrace bench replay: how much of a recorded load the prefix cache serves, without any model."""

from pathlib import Path

import click

from headrace.bench.replay import load_trace, measure_replay
from headrace.commands.report import EXISTING_FILE, counting, json_option, show

POOLS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@click.command()
@click.option(
    "--trace",
    "file",
    type=EXISTING_FILE,
    required=True,
    help="JSON lines with input_length, output_length and hash_ids, one for each 512 tokens; gzipped if .gz.",
)
@click.option(
    "--pool",
    "pools",
    type=float,
    multiple=True,
    default=POOLS,
    show_default=True,
    help="Pool size, as a share of what would hold every prompt. May be repeated.",
)
@click.option("--scale", type=int, default=32, show_default=True, help="Divide lengths by this; a hash stays a block.")
@click.option("--requests", type=click.IntRange(min=1), help="Only the first so many.")
@click.option("--concurrent", type=click.IntRange(min=1), default=1, show_default=True, help="Requests at once.")
@json_option
def replay(
    file: Path, pools: tuple[float, ...], scale: int, requests: int | None, concurrent: int, json_file: Path | None
) -> None:
    """Share of prompt tokens found cached at each pool size, beside a cache without end and plain LRU."""
    trace = load_trace(file, scale, requests)
    with counting(len(pools) * len(trace.visits), "requests") as count:
        report = measure_replay(trace, pools, concurrent, count)
    show(report, json_file)

"""headrace bench policies: what each policy brings beside the plain one it replaces, without any model."""

from pathlib import Path

import click

from headrace.bench.picture import draw_bars
from headrace.bench.policies import COMPARISONS, Report, describe_times, measure_policies
from headrace.commands.report import counting, json_option, plot_option, show

# The figures that a picture shows, by comparison, and their titles there.
_PICTURED = {
    "batching": {"tokens_per_s": "Batching: tokens/s", "slots_used": "Batching: share of slots used"},
    "memory": {"requests_at_once": "Memory: requests at once", "memory_wasted": "Memory: share wasted"},
    "sharing": {"prompt_tokens_computed": "Sharing: prompt tokens computed", "tokens_per_s": "Sharing: tokens/s"},
    "priority": {"urgent_ttft_p99_ms": "Priority: urgent p99 TTFT, ms", "tokens_per_s": "Priority: tokens/s"},
    "chunking": {"max_stall_ms": "Chunking: longest stall, ms", "long_ttft_ms": "Chunking: TTFT of long prompts, ms"},
}


@click.command()
@click.option("--scale", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Share of each load. [1]")
@plot_option
@json_option
def policies(scale: float, plot: Path | None, json_file: Path | None) -> None:
    """Static against continuous batching, contiguous against paged memory, and so on: the same loads, twice."""
    with counting(len(COMPARISONS), "comparisons") as progress:
        report = measure_policies(scale, progress)
    show({"times": describe_times(), **report}, json_file)
    if plot is not None:
        draw_bars(plot, _panels(report), columns=5)


def _panels(report: dict[str, Report]) -> dict[str, dict[str, float]]:
    return {
        title: {arm: values[figure] for arm, values in report[name].items()}
        for name, figures in _PICTURED.items()
        for figure, title in figures.items()
    }

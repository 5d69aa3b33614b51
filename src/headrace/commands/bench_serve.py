"""headrace bench serve: how a running server, ours or another, does under load: random or recorded arrivals, latencies,
and how many answers were within bounds. Flags have the names of vLLM's `bench serve` where they mean the same.
"""

import asyncio
import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from headrace.bench.arrivals import Planned, random_load, recorded_load
from headrace.bench.load import run_load
from headrace.bench.outcome import Bounds, report
from headrace.commands.report import EXISTING_FILE, counting, json_option, show
from headrace.core.errors import ConfigError, EngineError
from headrace.workload.traces import read_trace

_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option("--base-url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--model", help="Name of the model there. Default: the first it lists.")
@click.option("--api-key", help="Key of a server that asks for one.")
@click.option(
    "--backend",
    type=click.Choice(["openai", "openai-chat"]),
    default="openai",
    show_default=True,
    help="By /v1/completions or by /v1/chat/completions.",
)
@click.option("--num-prompts", type=click.IntRange(min=1), default=100, show_default=True, help="Requests.")
@click.option(
    "--request-rate", type=_POSITIVE, default=float("inf"), show_default=True, help="Requests a second; inf: at once."
)
@click.option("--burstiness", type=_POSITIVE, default=1.0, show_default=True, help="1: Poisson; below 1: in bursts.")
@click.option("--max-concurrency", type=click.IntRange(min=1), help="Most requests under way. Default: any number.")
@click.option("--random-input-len", type=click.IntRange(min=1), default=128, show_default=True, help="Prompt's words.")
@click.option(
    "--random-output-len", type=click.IntRange(min=1), default=128, show_default=True, help="Output's tokens."
)
@click.option("--random-prefix-len", type=click.IntRange(min=0), default=0, show_default=True, help="Words all share.")
@click.option(
    "--trace",
    type=EXISTING_FILE,
    help="Recorded arrivals and lengths instead: Mooncake's, Azure's, BurstGPT's or a CSV of times and lengths.",
)
@click.option("--trace-speed", type=_POSITIVE, default=1.0, show_default=True, help="Times faster than recorded.")
@click.option("--trace-scale", type=click.IntRange(min=1), default=1, show_default=True, help="Divide lengths by this.")
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Ask for outputs of full length.")
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--slo-ttft-ms", type=_POSITIVE, help="Longest time to the first token of a good answer.")
@click.option("--slo-tpot-ms", type=_POSITIVE, help="Longest time per token after it.")
@click.option("--metric-percentiles", default="50,90,99", show_default=True, help="Which ones, by commas.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts and arrivals.")
@json_option
def serve(
    base_url: str,
    num_prompts: int,
    trace: Path | None,
    slo_ttft_ms: float | None,
    slo_tpot_ms: float | None,
    metric_percentiles: str,
    max_concurrency: int | None,
    json_file: Path | None,
    **asked: Any,
) -> None:
    """Load a running server and report on its answers. Needs the `bench` extra."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--base-url must be http://HOST:PORT, got {base_url!r}", field="base_url")
    base_url = base_url.rstrip("/").removesuffix("/v1")
    percents = _percents(metric_percentiles)
    if trace is not None:
        planned = recorded_load(
            read_trace(trace, num_prompts), speed=asked["trace_speed"], scale=asked["trace_scale"], seed=asked["seed"]
        )
    else:
        planned = random_load(
            num_prompts,
            input_len=asked["random_input_len"],
            output_len=asked["random_output_len"],
            prefix_len=asked["random_prefix_len"],
            rate=asked["request_rate"],
            burstiness=asked["burstiness"],
            seed=asked["seed"],
        )
    outcomes, seconds = asyncio.run(_run(base_url, planned, max_concurrency, asked))
    shown = report(outcomes, seconds, Bounds(slo_ttft_ms, slo_tpot_ms), percents)
    show(shown, json_file)
    if not shown["completed"]:
        raise EngineError(f"no request of {len(planned)} was answered by {base_url}")


async def _run(
    base_url: str, planned: Sequence[Planned], max_concurrency: int | None, asked: dict[str, Any]
) -> tuple[list[Any], float]:
    client = _client()
    target = client.Target(
        base_url,
        asked["model"] or "",
        chat=asked["backend"] == "openai-chat",
        ignore_eos=asked["ignore_eos"],
        temperature=asked["temperature"],
        api_key=asked["api_key"],
    )
    async with client.session(target) as session:
        if not target.model:
            target = client.named(target, await client.first_model(session, base_url))
        with counting(len(planned), "requests") as progress:
            return await run_load(
                planned, partial(client.ask, session, target), max_concurrency=max_concurrency, progress=progress
            )


def _client() -> Any:
    """The client needs a library that the other commands do not."""
    try:
        return importlib.import_module("headrace.bench.openai_stream")
    except ModuleNotFoundError as error:
        raise ConfigError(f"bench serve needs {error.name}: pip install 'headrace[bench]'") from error


def _percents(given: str) -> list[int]:
    try:
        percents = [int(one) for one in given.split(",")]
    except ValueError:
        percents = []
    if not percents or not all(1 <= percent <= 100 for percent in percents):
        raise ConfigError(
            f"metric_percentiles must be whole numbers from 1 to 100 by commas, got {given!r}",
            field="metric_percentiles",
        )
    return percents

"""headrace bench speculation: whether guessing ahead pays on a kind of text, by how much, and with which method."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import click

from headrace.bench.picture import draw_bars
from headrace.bench.prompt_files import Prompt, read_prompts
from headrace.bench.speculation import PLAIN, count_groups, measure_speculation
from headrace.commands.report import json_option, plot_option, show, write_json
from headrace.commands.settings import takes_config
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.launch import build_engine
from headrace.models.sources import locate_model
from headrace.models.text import TextModel, load_text

_METHODS = ("ngram", "suffix", "draft_model")


@click.command()
@click.option(
    "--prompts",
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    required=True,
    help="JSON lines with prompt, turns or messages, and perhaps category; .gz too. May be repeated.",
)
@click.option("--method", "methods", type=click.Choice(_METHODS), multiple=True, help="[ngram and suffix]")
@click.option(
    "--batch", "batches", type=click.IntRange(min=1), multiple=True, default=(1,), help="Requests at once. [1]"
)
@click.option(
    "--per-category", type=click.IntRange(min=1), default=4, show_default=True, help="Prompts of each category."
)
@click.option("--output-len", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens of each answer.")
@plot_option
@json_option
@takes_config()
def speculation(
    files: tuple[Path, ...],
    methods: tuple[str, ...],
    batches: tuple[int, ...],
    per_category: int,
    output_len: int,
    plot: Path | None,
    json_file: Path | None,
    config: Config,
) -> None:
    """The same prompts with and without guessing ahead, in turns: what is accepted, how much it saves, what to use."""
    chosen = methods or (("draft_model",) if config.speculative_model is not None else ("ngram", "suffix"))
    if ("draft_model" in chosen) != (config.speculative_model is not None):
        raise ConfigError("--method draft_model and --speculative-model go together", field="speculative_model")
    located = dataclasses.replace(locate_model(config), enable_prefix_caching=False)
    text = load_text(Path(located.model))
    engines, longest = {}, 0
    for method in (PLAIN, *chosen):
        guesser = located.speculative_model if method == "draft_model" else None
        built = build_engine(dataclasses.replace(located, speculate=method, speculative_model=guesser))
        engines[method], longest = built.engine, built.ready.max_model_len
    prompts: dict[str, list[list[int]]] = {}
    for prompt in (one for file in files for one in read_prompts(file, per_category)):
        ids = _encode(text, prompt)
        if len(ids) + output_len <= longest:
            prompts.setdefault(prompt.category, []).append(ids)
    if not prompts:
        raise ConfigError(f"prompts: none leaves {output_len} tokens of a context of {longest}", field="prompts")
    with click.progressbar(length=count_groups(prompts, batches), label="groups", file=sys.stderr) as bar:
        report = measure_speculation(
            engines, prompts, batches, output_len=output_len, clock=time.perf_counter, progress=bar.update
        )
    _show_rows(report["rows"])
    show({name: value for name, value in report.items() if name != "rows"}, None)
    write_json(report, json_file)
    if plot is not None:
        draw_bars(plot, _panels(report["rows"]), columns=4)


def _encode(text: TextModel, prompt: Prompt) -> list[int]:
    if prompt.plain or text.chat_template is None:
        return text.tokenizer.encode(prompt.text)
    return text.chat_template.encode([{"role": "user", "content": prompt.text}])


def _show_rows(rows: list[dict[str, Any]]) -> None:
    width = max(len(row["category"]) for row in rows)
    click.echo(f"{'category':<{width}}  batch  method       accepted  length  speedup  decode  without loops")
    for row in rows:
        loops = row["speedup_without_loops"]
        click.echo(
            f"{row['category']:<{width}}  {row['batch']:>5}  {row['method']:<11}  {row['acceptance_rate']:>7.0%}"
            f"  {row['acceptance_length']:>6.2f}  {row['speedup']:>7.2f}  {row['decode_speedup']:>6.2f}"
            f"  {'-' if loops is None else f'{loops:.2f}':>13}"
        )


def _panels(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    panels: dict[str, dict[str, float]] = {}
    for row in rows:
        panels.setdefault(f"{row['category']}, batch {row['batch']}", {PLAIN: 1.0})[row["method"]] = row["speedup"]
    return panels

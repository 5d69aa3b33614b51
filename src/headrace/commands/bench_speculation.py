"""headrace bench speculation: whether guessing ahead pays on a kind of text, by how much, and with which method."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from headrace.bench.edits import edited_twice
from headrace.bench.picture import draw_bars
from headrace.bench.prompt_files import Prompt, read_prompts
from headrace.bench.speculation import EDITS, IN_VAIN, PLAIN, Asked, InVain, count_groups, measure_speculation
from headrace.commands.report import EXISTING_FILE, counting, json_option, plot_option, show, write_json
from headrace.commands.settings import takes_config
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.engine.engine import Engine
from headrace.launch import build_engine
from headrace.models.sources import locate_model
from headrace.models.text import TextModel, load_text
from headrace.worker.drafters.by_name import lookup_drafter

_METHODS = ("ngram", "suffix", "draft_model")
_FEW_ROWS = 9
_FEW_COMPARISONS = 3


@click.command()
@click.option(
    "--prompts",
    "files",
    type=EXISTING_FILE,
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
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Times that all of it is run; of each group of prompts the median counts.",
)
@click.option("--output-len", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens of each answer.")
@click.option(
    "--edits/--no-edits",
    default=True,
    show_default=True,
    help="Also what an agent does: prompts taken for files that are written again twice with one line changed.",
)
@click.option(
    "--overhead/--no-overhead",
    default=True,
    show_default=True,
    help="Also what guessing takes where every guess is wrong.",
)
@plot_option
@json_option
@takes_config()
def speculation(
    files: tuple[Path, ...],
    methods: tuple[str, ...],
    batches: tuple[int, ...],
    per_category: int,
    rounds: int,
    output_len: int,
    edits: bool,
    overhead: bool,
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
    engines: dict[str, Engine] = {}
    for method in (PLAIN, *chosen):
        guesser = located.speculative_model if method == "draft_model" else None
        built = build_engine(dataclasses.replace(located, speculate=method, speculative_model=guesser))
        engines[method] = built.engine
    longest, wrong = built.ready.max_model_len, lookup_drafter("suffix")
    if overhead and wrong is not None:
        plain = dataclasses.replace(located, speculate="none", speculative_model=None)
        engines[IN_VAIN] = build_engine(plain, drafter=InVain(wrong, built.ready.vocab_size)).engine
    asked: dict[str, list[Asked]] = {}
    read = [one for file in files for one in read_prompts(file, max(per_category, *batches))]
    for prompt in read:
        asked.setdefault(prompt.category, []).append(Asked(encode_prompt(text, prompt)))
    if edits:
        texts = [prompt.text for prompt in read if prompt.plain] or [prompt.text for prompt in read]
        asked[EDITS] = edited_twice(
            texts[:per_category], _turns(text), lambda piece: len(text.tokenizer.encode(piece)), output_len
        )
    prompts = {
        category: fitting
        for category, every in asked.items()
        if (fitting := [one for one in every if len(one.ids) + output_len <= longest])
    }
    if not prompts:
        raise ConfigError(f"prompts: none leaves {output_len} tokens of a context of {longest}", field="prompts")
    number = rounds * count_groups(prompts, batches, per_category)
    with counting(number, "groups") as progress:
        report = measure_speculation(
            engines,
            prompts,
            batches,
            output_len=output_len,
            most=per_category,
            rounds=rounds,
            eos_ids=text.tokenizer.eos_ids,
            clock=time.perf_counter,
            progress=progress,
        )
    _show_rows(report["rows"])
    _show_steps(report["step_ms_by_rows"])
    show({name: value for name, value in report.items() if name not in ("rows", "step_ms_by_rows")}, None)
    write_json(report, json_file)
    if plot is not None:
        draw_bars(plot, _panels(report), columns=4)


def encode_prompt(text: TextModel, prompt: Prompt) -> list[int]:
    """As the question it asks, or as it stands if it is to be continued."""
    if prompt.plain or text.chat_template is None:
        return text.tokenizer.encode(prompt.text)
    return text.chat_template.encode([{"role": "user", "content": prompt.text}])


def _turns(text: TextModel) -> Callable[[list[dict[str, str]]], list[int]]:
    """How a conversation becomes tokens, for a model without a template as its texts in turn."""
    if text.chat_template is not None:
        return text.chat_template.encode
    return lambda messages: text.tokenizer.encode("\n\n".join(message["content"] for message in messages))


def _show_rows(rows: list[dict[str, Any]]) -> None:
    width = max(len(row["category"]) for row in rows)
    click.echo(f"{'category':<{width}}  batch  method       accepted  length  speedup  decode  latency  without loops")
    for row in rows:
        loops = row["speedup_without_loops"]
        click.echo(
            f"{row['category']:<{width}}  {row['batch']:>5}  {row['method']:<11}  {row['acceptance_rate']:>7.0%}"
            f"  {row['acceptance_length']:>6.2f}  {row['speedup']:>7.2f}  {row['decode_speedup']:>6.2f}"
            f"  {row['latency_speedup']:>7.2f}"
            f"  {'-' if loops is None else f'{loops:.2f}':>13}"
        )


def _show_steps(steps: list[dict[str, Any]]) -> None:
    for method in dict.fromkeys(one["method"] for one in steps):
        for guesses, kind in ((False, "without guesses"), (True, "with guesses")):
            mine = [
                f"{one['rows']}: {one['ms']:.1f}"
                for one in steps
                if (one["method"], one["guesses"]) == (method, guesses) and one["comparisons"] >= _FEW_COMPARISONS
            ]
            if mine:
                click.echo(f"{method}: ms of a step {kind}, by rows: {', '.join(mine[:24])}")


def _panels(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    panels: dict[str, dict[str, float]] = {}
    for row in report["rows"]:
        panels.setdefault(f"{row['category']}, batch {row['batch']}", {PLAIN: 1.0})[row["method"]] = row["speedup"]
    for one in report["step_ms_by_rows"]:
        if one["rows"] <= _FEW_ROWS and not one["guesses"]:
            panels.setdefault(f"{one['method']}, ms of a step by rows", {})[str(one["rows"])] = one["ms"]
    return panels

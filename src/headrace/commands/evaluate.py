"""headrace eval: how well a model predicts a text."""

import dataclasses
import gzip
import time
from functools import partial
from pathlib import Path

import click

from headrace.bench.perplexity import cut_windows, measure_perplexity
from headrace.commands.report import EXISTING_FILE, counting, json_option, show
from headrace.commands.settings import takes_config
from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.engine.drive import drive
from headrace.launch import build_engine
from headrace.models.sources import locate_model
from headrace.models.text import load_text


@click.group(name="eval")
def evaluate() -> None:
    """Measure a model's quality."""


@evaluate.command()
@click.option("--text", type=EXISTING_FILE, required=True, help="A UTF-8 file, gzipped if it ends in .gz.")
@click.option("--window", type=int, default=2048, show_default=True, help="Tokens in a window.")
@click.option("--windows", type=int, default=20, show_default=True, help="Windows to score, from the start.")
@json_option
@takes_config()
def perplexity(text: Path, window: int, windows: int, json_file: Path | None, config: Config) -> None:
    """exp of the mean negative log-probability of the text's tokens under MODEL."""
    located = locate_model(config)
    pieces = cut_windows(tokenize_file(located.model, text), window, windows)
    built = build_engine(located)
    if window > built.ready.max_model_len:
        raise ConfigError(
            f"window must be at most {built.ready.max_model_len}, the longest sequence here, got {window}",
            field="window",
        )
    with counting(sum(len(p) - 1 for p in pieces), "scoring") as progress:
        result = measure_perplexity(partial(drive, built.engine, clock=time.monotonic), pieces, progress)
    show(dataclasses.asdict(result), json_file)


def tokenize_file(model: str, text: Path) -> list[int]:
    """Token ids of a whole file, without special tokens. model is a local path."""
    raw = text.read_bytes()
    content = (gzip.decompress(raw) if text.suffix == ".gz" else raw).decode("utf-8")
    return load_text(Path(model)).tokenizer.encode(content, add_special_tokens=False, param="text")

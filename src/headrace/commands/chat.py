"""headrace chat: a conversation in the terminal, with a model in this process or with any OpenAI server."""

import contextlib
import dataclasses
import functools
import sys
from typing import Any

import click

from headrace.commands.conversation import converse
from headrace.commands.local import LocalModel
from headrace.commands.remote import RemoteChat
from headrace.commands.sampling import takes_sampling
from headrace.commands.settings import takes_config
from headrace.core.config import DEFAULT_MODEL, Config
from headrace.core.errors import ConfigError

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  (gives input() line editing and history, where the platform has it)


@click.command()
@click.option("--url", help="Talk to the OpenAI server there; MODEL is its name for the model.")
@click.option("--url-api-key", envvar="OPENAI_API_KEY", help="Key for --url. [OPENAI_API_KEY]")
@click.option("--system", help="What the model is told before the conversation.")
@takes_sampling
@takes_config()
def chat(url: str | None, url_api_key: str | None, system: str | None, sampling: dict[str, Any], config: Config) -> int:
    """Talk to MODEL. Ctrl-C stops an answer, Ctrl-D leaves. Lines may also come through a pipe: the status is then 1
    if one was refused."""
    source = LocalModel(config, for_chat=True) if url is None else RemoteChat(url, _name_there(config), url_api_key)
    typed = sys.stdin.isatty()
    refused = converse(functools.partial(source.answer, sampling=sampling), input, system=system, typed=typed)
    return int(refused > 0 and not typed)


def _name_there(config: Config) -> str | None:
    """The model's name at a server, None where it was not given. Raises ConfigError for settings of an engine here,
    which no server would hear of."""
    unset = dataclasses.replace(Config().resolve(), model=config.model)
    for field in dataclasses.fields(Config):
        if getattr(config, field.name) != getattr(unset, field.name):
            raise ConfigError(
                f"{field.name} is a setting of a model in this process, and with --url there is none: leave out one "
                "of them",
                field=field.name,
            )
    return None if config.model == DEFAULT_MODEL else config.model

"""A conversation in a terminal: reads a line, streams the answer, remembers both. Where answers come from is not
its business. Ctrl-C stops an answer and keeps what was said of it; Ctrl-D leaves.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Protocol

import click

from headrace.core.errors import RequestError

Message = dict[str, str]
Answer = Callable[[list[Message]], Generator[str, None, None]]


class ReadLine(Protocol):
    def __call__(self, prompt: str, /) -> str:
        """Raises EOFError at the end of input."""


def converse(answer: Answer, read: ReadLine, *, system: str | None = None, typed: bool = True) -> int:
    """Talk until the end of input. A question that is refused (too long, say) is dropped and told of; returns how many
    were. typed: someone sits there, and is asked for each line."""
    refused = 0
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    while True:
        try:
            line = read("> " if typed else "").strip()
        except EOFError:
            if typed:
                click.echo()
            return refused
        except KeyboardInterrupt:
            click.echo()
            continue
        if not line:
            continue
        asked = [*messages, {"role": "user", "content": line}]
        try:
            said = _stream(answer(asked))
        except RequestError as error:
            refused += 1
            click.echo(f"error: {error}", err=True)
            continue
        messages = [*asked, {"role": "assistant", "content": said}]


def _stream(pieces: Generator[str, None, None]) -> str:
    """Show pieces as they come; Ctrl-C ends them. Returns what was shown."""
    said: list[str] = []
    with contextlib.closing(pieces), contextlib.suppress(KeyboardInterrupt):
        for piece in pieces:
            said.append(piece)
            click.echo(piece, nl=False)
    click.echo()
    return "".join(said)

"""Sampling parameters as flags of the commands that generate. Only those that were given are passed on, so that the
model's own defaults, or the server's, hold for the rest.
"""

import functools
from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]

# name: (type, help); the names and meanings are those of SamplingParams.
_FLAGS: dict[str, tuple[Any, str]] = {
    "max_tokens": (int, "Most tokens to generate."),
    "min_tokens": (int, "Tokens to generate before the text may end."),
    "temperature": (float, "Randomness, 0 to 2; 0 takes the likeliest token."),
    "top_p": (float, "Sample among the likeliest tokens that have this probability together."),
    "top_k": (int, "Sample among this many likeliest tokens."),
    "min_p": (float, "Sample among tokens at least this likely, relative to the likeliest."),
    "presence_penalty": (float, "Make tokens that occurred less likely, -2 to 2."),
    "frequency_penalty": (float, "Make tokens less likely each time they occurred, -2 to 2."),
    "repetition_penalty": (float, "Divide the logits of tokens that occurred; 1 is off."),
}


def takes_sampling(command: Command) -> Command:
    """Give a command the sampling flags; it is called with `sampling`, the given ones by name."""

    @functools.wraps(command)
    def sampled(**given: Any) -> Any:
        sampling = {name: given.pop(name) for name in _FLAGS}
        sampling |= {"stop": list(given.pop("stop")) or None, "ignore_eos": given.pop("ignore_eos") or None}
        return command(sampling={n: v for n, v in sampling.items() if v is not None}, **given)

    flagged: Command = sampled
    flagged = click.option("--ignore-eos", is_flag=True, help="Go on past the model's end of text.")(flagged)
    flagged = click.option("--stop", multiple=True, help="End where this text appears; may be repeated.")(flagged)
    for name, (kind, text) in reversed(_FLAGS.items()):
        flagged = click.option(f"--{name.replace('_', '-')}", name, type=kind, default=None, help=text)(flagged)
    return flagged

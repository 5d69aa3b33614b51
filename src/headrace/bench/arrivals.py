"""What a load sends and when: requests at random times (Poisson, or burstier), all at once, or as they were recorded.
Prompts are words that most vocabularies have as one token each; where a trace names the content of a prompt's blocks,
equal names make equal words, so that prefixes are shared as they were. The same seed makes the same load.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.workload.demand import ANSWER, Demand, Part

_TEXT = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what
all were we when your can said there use an each which she do how their if will up other about out many then them these
so some her would make like him into time has look two more write go see number no way could people my
"""
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Planned:
    """at: seconds after the beginning."""

    at: float
    prompt: str
    output_len: int


def random_load(
    count: int, *, input_len: int, output_len: int, prefix_len: int, rate: float, burstiness: float, seed: int
) -> list[Planned]:
    """rate: requests a second on average, infinity for all at once. burstiness: shape of the gaps' gamma distribution;
    1 is Poisson, below 1 burstier. prefix_len: words that all prompts begin with, beside input_len of their own."""
    draw = random.Random(seed)
    prefix = _words(prefix_len, draw)
    at, planned = 0.0, []
    for _ in range(count):
        planned.append(Planned(at, " ".join(prefix + _words(input_len, draw)), output_len))
        if rate != float("inf"):
            at += draw.gammavariate(burstiness, 1 / (rate * burstiness))
    return planned


def recorded_load(trace: Sequence[Demand], *, speed: float, scale: int, seed: int) -> list[Planned]:
    """speed: how many times faster than recorded. scale: lengths are divided by it. What a trace names is the same
    words with every seed; other prompts are drawn."""
    return [
        Planned(
            (one.at - trace[0].at) / speed,
            " ".join(word for part in one.prompt for word in _part(part, scale, seed)),
            max(1, one.output_len // scale),
        )
        for one in trace
    ]


def _part(part: Part, scale: int, seed: int) -> list[str]:
    name, length = part
    return _words(-(-length // scale), random.Random(name if name > ANSWER else f"{seed} {name}"))


def _words(count: int, draw: random.Random) -> list[str]:
    return draw.choices(_WORDS, k=count)

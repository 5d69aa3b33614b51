"""Prompts as an engine and a router see them: tokens and names of blocks, made of a demand's named parts. Each token
of a part is the part's own number, so that two prompts are equal exactly as far as their parts are, and what is cached
is found to the token; a model's answers are one content too, the token that the simulated device names.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from headrace.simulate.executor import ANSWER_TOKEN
from headrace.workload.demand import ANSWER, Part


class Prompts:
    """Numbers contents as they come up."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {ANSWER: ANSWER_TOKEN}
        # A block's name is the number of the prefix that it ends: the whole parts before its last part, that part's
        # content, and how many of its tokens.
        self._names: dict[tuple[int, int, int], int] = {}

    def tokens(self, prompt: Sequence[Part]) -> array[int]:
        """int32, one for each token."""
        numbers = self._numbers
        own = [numbers.setdefault(name, ANSWER_TOKEN + len(numbers)) for name, _ in prompt]
        repeated = np.repeat(np.array(own, np.int32), [length for _, length in prompt])
        return array("i", repeated.tobytes())

    def names(self, prompt: Sequence[Part], block_size: int) -> list[int]:
        """One for each whole block."""
        names, known = [], self._names
        before = at = 0
        edge = block_size
        for name, length in prompt:
            while edge <= at + length:
                names.append(known.setdefault((before, name, edge - at), len(known) + 1))
                edge += block_size
            at += length
            before = known.setdefault((before, name, length), len(known) + 1)
        return names

"""Prompts as an engine and a router see them: tokens and names of blocks, made of a demand's named parts. Each token
of a part is the part's own number, so that two prompts are equal exactly as far as their parts are, and what is cached
is found to the token; a model's answers are one content too, the token that the simulated device names.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from headrace.policy.chain import links, namespace
from headrace.simulate.executor import ANSWER_TOKEN
from headrace.workload.demand import ANSWER, Part

_UNSALTED = namespace("", "")


class Prompts:
    """Numbers contents as they come up."""

    def __init__(self) -> None:
        # The token of each content, as the four bytes of an int32.
        self._tokens: dict[int, bytes] = {ANSWER: ANSWER_TOKEN.to_bytes(4, sys.byteorder)}
        # A block's name is the number of the prefix that it ends: the whole parts before its last part, that part's
        # content, and how many of its tokens.
        self._names: dict[tuple[int, int, int], int] = {}

    def tokens(self, prompt: Sequence[Part]) -> array[int]:
        """int32, one for each token."""
        known, parts = self._tokens, []
        for name, length in prompt:
            token = known.get(name)
            if token is None:
                token = known[name] = (ANSWER_TOKEN + len(known)).to_bytes(4, sys.byteorder)
            parts.append(token * length)
        tokens = array("i")
        tokens.frombytes(b"".join(parts))
        return tokens

    def hashes(self, prompt: Sequence[Part], block_size: int) -> list[bytes]:
        """One for each whole block, as engines without a fingerprint name them."""
        tokens = self.tokens(prompt)
        return links(_UNSALTED, tokens.tobytes(), tokens.itemsize * block_size)

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
            # A part that ends with a block ends the prefix which that one names.
            ends = length and edge - at == block_size
            before = names[-1] if ends else known.setdefault((before, name, length), len(known) + 1)
        return names

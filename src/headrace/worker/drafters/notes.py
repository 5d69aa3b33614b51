"""Which positions of a text a draft model has computed: its blocks say so themselves. Each ends with a note, the name
of the prefix before it (policy/chain.py) and the tokens of which its keys and values are. The block manager gives
blocks, shares, turns, copies and takes them, and moves them to other tiers, by what the other model has computed; the
draft model lags behind and need not follow, since a note goes where its block goes and is believed for its own text
alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.batch import IntArray
from headrace.core.kv_layout import NAME_WORDS
from headrace.policy.chain import links, namespace


class Text:
    """A request's named tokens as far as they were seen, and the names of what ends before each of its blocks."""

    __slots__ = ("_names", "_width")

    def __init__(self, fingerprint: str, salt: str, block_size: int) -> None:
        self._width = 4 * block_size
        self._names = namespace(fingerprint, salt)

    def names(self, tokens: IntArray, named: int) -> IntArray:
        """int32 [blocks, NAME_WORDS] for all tokens, of which the first `named` will stay as they are."""
        size = 4 * NAME_WORDS
        data, known = tokens.tobytes(), len(self._names) // size - 1
        more = b"".join(links(self._names[-size:], data[known * self._width :], self._width))
        names = self._names + more
        self._names = names[: (4 * named // self._width + 1) * size]
        return np.frombuffer(names, np.int32).reshape(-1, NAME_WORDS)


class Notes:
    """notes: of each group, int32 [blocks, NAME_WORDS + block_size]: where the blocks have them."""

    def __init__(self, notes: Sequence[IntArray]) -> None:
        self._notes = notes
        self._size = notes[0].shape[1] - NAME_WORDS

    def computed(self, blocks: IntArray, names: IntArray, tokens: IntArray) -> int:
        """How many tokens from the first on are computed in every group; blocks int32 [groups, n]."""
        count = -(-len(tokens) // self._size)
        padded: IntArray = np.full(count * self._size, -1, np.int32)
        padded[: len(tokens)] = tokens
        known = len(tokens)
        for notes, row in zip(self._notes, blocks, strict=True):
            said = notes[row[:count]]
            right = said[:, NAME_WORDS:] == padded.reshape(count, self._size)
            right &= (said[:, :NAME_WORDS] == names[:count]).all(axis=1)[:, None]
            flat = right.ravel()[:known]
            known = known if flat.all() else int(np.argmin(flat))
        return known

    def begin(self, blocks: IntArray, names: IntArray, start: int, count: int) -> None:
        """Positions from start on are about to be computed: whatever comes after it is not."""
        first, last = start // self._size, (start + count - 1) // self._size
        for notes, row in zip(self._notes, blocks, strict=True):
            touched = row[first : last + 1]
            notes[touched, :NAME_WORDS] = names[first : last + 1]
            notes[touched[0], NAME_WORDS + start % self._size :] = -1
            notes[touched[1:], NAME_WORDS:] = -1

    def end(self, blocks: IntArray, start: int, tokens: IntArray) -> None:
        """These tokens are computed, from position start on."""
        at = np.arange(start, start + len(tokens))
        for notes, row in zip(self._notes, blocks, strict=True):
            notes[row[at // self._size], NAME_WORDS + at % self._size] = tokens

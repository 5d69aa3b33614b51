"""Tokens that must not be sampled: masks of one bit a token (those a client allows, those a grammar does), and words
that are kept out by barring the token that would complete them.
"""

from collections.abc import Sequence

import numpy as np

from headrace.core.batch import BoolArray, IntArray, TokenMasks, WordArray


class BadWords:
    """Sequences of tokens that no output may hold: which tokens would complete one is found by the last token of
    what comes before, so most rows look at nothing but the words of one token."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._alone = np.unique(np.array([w[0] for w in words if len(w) == 1], np.int32))
        self._after: dict[int, list[tuple[int, ...]]] = {}
        for word in words:
            if len(word) > 1:
                self._after.setdefault(word[-2], []).append(tuple(word))

    def ends(self, outputs: IntArray) -> IntArray:
        """Tokens that complete a word after these outputs."""
        words = self._after.get(int(outputs[-1]), ()) if len(outputs) else ()
        completed = [w[-1] for w in words if tuple(outputs[1 - len(w) :].tolist()) == w[:-1]]
        return np.concatenate([self._alone, np.array(completed, np.int32)]) if completed else self._alone


def mask_of(tokens: Sequence[int], vocab_size: int) -> WordArray:
    """A mask that lets these tokens through."""
    allowed = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    allowed[np.fromiter(tokens, np.int64, len(tokens))] = True
    return np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32)


def barred_by(masks: TokenMasks | None, row: int, vocab_size: int) -> BoolArray | None:
    """Which tokens a row's mask bars; None without a mask."""
    if masks is None or masks.row[row] < 0:
        return None
    words = masks.bits[masks.row[row]].astype("<u4").view(np.uint8)
    barred: BoolArray = np.unpackbits(words, count=vocab_size, bitorder="little") == 0
    return barred

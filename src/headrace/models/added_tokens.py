"""AddedTokens: tokens that are found whole in a text before anything else looks at it. The special ones (control
tokens) count only where the caller says so; the others count everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AddedToken:
    """lstrip, rstrip: the white space before or after it belongs to it."""

    id: int
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False


class AddedTokens:
    """ids: all of them by id. special_ids and special_texts: the special ones, and the id of each by its text."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        longest_first = sorted(tokens, key=lambda token: len(token.content), reverse=True)
        self.by_id = {token.id: token for token in longest_first}
        self.special_ids = frozenset(token.id for token in longest_first if token.special)
        self.special_texts = {token.content: token.id for token in longest_first if token.special}
        self._all = _Finder(longest_first)
        self._special = _Finder([token for token in longest_first if token.special])
        self._ordinary = _Finder([token for token in longest_first if not token.special])

    def split(self, text: str, *, special: bool) -> Iterator[str | int]:
        """The ids of tokens found in a text and the texts between them, none empty, in order. Without `special`,
        special tokens are text."""
        return (self._all if special else self._ordinary).split(text)

    def split_at_special(self, text: str) -> Iterator[str | int]:
        """The same, of special tokens only."""
        return self._special.split(text)


class _Finder:
    def __init__(self, longest_first: list[AddedToken]) -> None:
        self._ids = [token.id for token in longest_first]
        self._pattern = re.compile("|".join(map(_alternative, longest_first)) or r"(?!)")

    def split(self, text: str) -> Iterator[str | int]:
        end = 0
        for match in self._pattern.finditer(text):
            assert match.lastindex is not None
            if match.start() > end:
                yield text[end : match.start()]
            yield self._ids[match.lastindex - 1]
            end = match.end()
        if end < len(text):
            yield text[end:]


def _alternative(token: AddedToken) -> str:
    before = r"(?:(?<!\s)\s++)?" if token.lstrip else ""
    return before + f"({re.escape(token.content)})" + (r"\s*" if token.rstrip else "")

"""AddedTokens: tokens that are found whole in a text before anything else looks at it. The special ones (control
tokens) count only where the caller says so; the others count everywhere.
"""

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
    """by_id: all of them. special_ids, special_texts: the special ones, and the id of each by its text. None may be
    empty. Where two fit, the longer one counts."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        given = list(tokens)
        self.by_id = {token.id: token for token in given}
        self.special_ids = frozenset(token.id for token in given if token.special)
        self.special_texts = {token.content: token.id for token in given if token.special}
        self._all = _Finder(given)
        self._special = _Finder([token for token in given if token.special])
        self._ordinary = _Finder([token for token in given if not token.special])

    def split(self, text: str, *, special: bool) -> Iterator[str | int]:
        """The ids of tokens found in a text and the texts between them, none empty, in order. Without `special`,
        special tokens are text."""
        return (self._all if special else self._ordinary).split(text)

    def split_at_special(self, text: str) -> Iterator[str | int]:
        """The same, of special tokens only."""
        return self._special.split(text)


class _Finder:
    """Looks only where some token's first character stands, and there for the longest token first."""

    def __init__(self, tokens: list[AddedToken]) -> None:
        self._by_text = {token.content: token for token in tokens}
        firsts = {text[0] for text in self._by_text}
        self._lengths = {c: sorted({len(t) for t in self._by_text if t[0] == c}, reverse=True) for c in firsts}
        self._places = re.compile(f"[{''.join(map(re.escape, sorted(firsts)))}]" if firsts else r"(?!)")

    def split(self, text: str) -> Iterator[str | int]:
        done = 0
        for place in self._places.finditer(text):
            begin = place.start()
            token = self._token_at(text, begin) if begin >= done else None
            if token is None:
                continue
            end = begin + len(token.content)
            while token.lstrip and begin > done and text[begin - 1].isspace():
                begin -= 1
            while token.rstrip and end < len(text) and text[end].isspace():
                end += 1
            if begin > done:
                yield text[done:begin]
            yield token.id
            done = end
        if done < len(text):
            yield text[done:]

    def _token_at(self, text: str, begin: int) -> AddedToken | None:
        for length in self._lengths[text[begin]]:
            token = self._by_text.get(text[begin : begin + length])
            if token is not None:
                return token
        return None

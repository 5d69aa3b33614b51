"""Where in a text the last few tokens have occurred before: an index that grows with the text and finds, for its end,
the earlier places that end alike, longest likeness first. Both lookup drafters stand on it.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_PLACES = 16
"""Places kept for each short run of tokens: the latest."""
MOST_ALIKE = 32
"""Likeness is not measured further back than this."""


class Occurrences:
    """tokens grows by extend(). A place p means that what stands before p ended like this, and tokens[p:] followed."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        run, known = self.run, self.tokens
        known.extend(tokens)
        for end in range(max(run, len(known) - len(tokens) + 1), len(known) + 1):
            places = self._places.setdefault(tuple(known[end - run : end]), [])
            places.append(end)
            if len(places) > MOST_PLACES:
                del places[0]

    def alike(self, end: Sequence[int]) -> list[tuple[int, int]]:
        """(likeness, place) for places that end with the last `run` tokens of `end` and have something after them, in
        no order. likeness: how many last tokens agree, at most MOST_ALIKE."""
        places = self._places.get(tuple(end[-self.run :])) if len(end) >= self.run else None
        if not places:
            return []
        found = []
        known, last = self.tokens, len(end) - 1
        for place in places:
            if place == len(known):
                continue
            same, most = self.run, min(MOST_ALIKE, place, len(end))
            while same < most and known[place - 1 - same] == end[last - same]:
                same += 1
            found.append((same, place))
        return found

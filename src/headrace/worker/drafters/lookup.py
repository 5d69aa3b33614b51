"""Drafters that copy: what followed the same words before, in the request's own text (n-gram, or prompt lookup: Saxena,
"Prompt Lookup Decoding", 2023) or also in what others of its namespace were answered (suffix: Oliaro et al.,
"SuffixDecoding", 2024). A proposal goes on as the places do that agree with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.batch import IntArray
from headrace.policy.speculation import NOTHING, Context, Proposal
from headrace.worker.drafters.occurrences import Occurrences

_RUN = 1
_LONG_RUN = 2
_MOST_NAMESPACES = 64
_OWN_ODDS = (0.0, 0.33, 0.68, 0.8, 0.82, 0.86, 0.88, 0.88, 0.89, 0.89, 0.89, 0.9, 0.9, 0.97)
_PAST_ODDS = (0.0, 0.17, 0.54, 0.66, 0.8, 0.83, 0.85, 0.86, 0.87, 0.87, 0.88, 0.88, 0.88, 0.97)
"""Odds that the next token repeats where all places agree, by likeness, in the request's own text and in what others
were answered; the last for all that are more alike. Counted over answers of the default model to Spec-Bench and
HumanEval; each request's own record corrects them (policy/speculation.py)."""
_LEAST_CHANCE = 0.1
"""What is less likely to come than this is not followed further: no step is so cheap, and looking takes time too."""
_PAST_WEIGHT = 0.5
"""What a place in another's text counts beside one in one's own."""


class _Own:
    """A request's own text, as far as it was seen."""

    __slots__ = ("serial", "text")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.text = Occurrences(_RUN)


class LookupDrafter:
    """past_tokens: how many tokens of past outputs are remembered, over all namespaces; 0 for none (n-gram)."""

    costly = False
    copy = None

    def __init__(self, *, past_tokens: int = 0) -> None:
        self._past_tokens = past_tokens
        self._own: dict[int, _Own] = {}
        self._past: dict[tuple[str, str], list[Occurrences]] = {}
        self._held = 0

    def propose(self, contexts: Sequence[Context]) -> list[Proposal]:
        return [self._propose(context) for context in contexts]

    def remember(self, namespace: tuple[str, str], tokens: IntArray, prompt_len: int) -> None:
        output = tokens[max(0, prompt_len - _LONG_RUN) :].tolist()
        if not self._past_tokens or len(output) <= _LONG_RUN or len(output) > self._past_tokens:
            return
        texts = self._past.pop(namespace, [])
        # The latest used stands last: the first is the first to be forgotten.
        self._past[namespace] = texts
        if not texts or len(texts[-1].tokens) > self._past_tokens // 16:
            texts.append(Occurrences(_LONG_RUN))
        texts[-1].extend(output)
        self._held += len(output)
        while self._held > self._past_tokens or len(self._past) > _MOST_NAMESPACES:
            oldest = next(iter(self._past))
            self._held -= len(self._past[oldest].pop(0).tokens)
            if not self._past[oldest]:
                del self._past[oldest]

    def _propose(self, context: Context) -> Proposal:
        own = self._own.get(context.slot)
        if own is None or own.serial != context.serial:
            own = self._own[context.slot] = _Own(context.serial)
        text = own.text
        text.extend(context.tokens[len(text.tokens) :].tolist())
        found = [_Place(same, text.tokens, place, own=True) for same, place in text.alike(text.tokens)]
        for past in self._past.get(context.namespace, ()):
            found += [_Place(same, past.tokens, place, own=False) for same, place in past.alike(text.tokens)]
        return _follow(found, context.most) if found else NOTHING


class _Place:
    """Where in a text something alike stands, and how alike. One's own text goes on with what is being proposed, so
    that a loop may be followed further than it has come."""

    __slots__ = ("odds", "own", "place", "same", "text")

    def __init__(self, same: int, text: list[int], place: int, *, own: bool) -> None:
        self.same, self.text, self.place, self.own = same, text, place, own
        self.odds = _OWN_ODDS if own else _PAST_ODDS

    def next(self, proposed: list[int]) -> int | None:
        """What follows there, None at the end of another's text."""
        beyond = self.place - len(self.text)
        if beyond < 0:
            return self.text[self.place]
        return proposed[beyond] if self.own else None

    def weight(self) -> float:
        """The likest place counts most, and one that agrees with it by chance hardly."""
        return 2.0 ** min(self.same, 24) * (1.0 if self.own else _PAST_WEIGHT)

    def chance(self) -> float:
        return self.odds[min(self.same, len(self.odds) - 1)]


def _follow(found: list[_Place], most: int) -> Proposal:
    """Go on as the places do, as long as some are left; of those that differ, the likelier lead."""
    tokens: list[int] = []
    odds: list[float] = []
    chance = 1.0
    while len(tokens) < most and chance >= _LEAST_CHANCE:
        nexts = [(token, one) for one in found if (token := one.next(tokens)) is not None]
        if not nexts:
            break
        weights: dict[int, float] = {}
        for token, one in nexts:
            weights[token] = weights.get(token, 0.0) + one.weight()
        likeliest = max(weights, key=weights.__getitem__)
        found = [one for token, one in nexts if token == likeliest]
        chance *= max(one.chance() for one in found) * weights[likeliest] / sum(weights.values())
        tokens.append(likeliest)
        odds.append(chance)
        for one in found:
            one.same += 1
            one.place += 1
    return Proposal(tokens, odds)

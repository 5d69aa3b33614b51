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
_MOST_LIKENESS = len(_OWN_ODDS)
_AGREED = (1.0, 0.85, 0.72, 0.61)
"""What is left of the doubt where so many places agree."""
_MOST_WEIGHT = 24
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
        found = [(same, text.tokens, place, True) for same, place in text.alike(text.tokens)]
        for past in self._past.get(context.namespace, ()):
            found += [(same, past.tokens, place, False) for same, place in past.alike(text.tokens)]
        return _follow(found, context.most, context.least) if found else NOTHING


_Place = tuple[int, list[int], int, bool]
"""How alike, in which text, where in it, and whether it is one's own. One's own text goes on with what is being
proposed, so that a loop may be followed further than it has come."""


def _follow(found: list[_Place], most: int, least: float) -> Proposal:
    """Go on as the places do, as long as some are left; of those that differ, the likelier lead."""
    tokens: list[int] = []
    odds: list[float] = []
    chance = 1.0
    while len(tokens) < most:
        ahead = len(tokens)
        # By token: what speaks for it, the best odds of its places, and these.
        nexts: dict[int, tuple[float, float, list[_Place]]] = {}
        for one in found:
            same, text, place, own = one
            beyond = place + ahead - len(text)
            if beyond < 0:
                token = text[beyond]
            elif own:
                token = tokens[beyond]
            else:
                continue
            alike = same + ahead
            # The likest place counts most, and one that agrees with it by chance hardly.
            weight = 2.0 ** min(alike, _MOST_WEIGHT) * (1.0 if own else _PAST_WEIGHT)
            by_likeness = _OWN_ODDS if own else _PAST_ODDS
            best = by_likeness[alike] if alike < _MOST_LIKENESS else by_likeness[-1]
            if (others := nexts.get(token)) is None:
                nexts[token] = (weight, best, [one])
            else:
                others[2].append(one)
                nexts[token] = (others[0] + weight, max(others[1], best), others[2])
        if not nexts:
            break
        token, (weight, best, found) = (
            max(nexts.items(), key=_by_weight) if len(nexts) > 1 else next(iter(nexts.items()))
        )
        unsure = (1.0 - best) * _AGREED[min(len(found), len(_AGREED)) - 1]
        chance *= (1.0 - unsure) * (weight / sum(one[0] for one in nexts.values()) if len(nexts) > 1 else 1.0)
        if chance < least:
            break
        least = _LEAST_CHANCE
        tokens.append(token)
        odds.append(chance)
    return Proposal(tokens, odds)


def _by_weight(one: tuple[int, tuple[float, float, list[_Place]]]) -> float:
    return one[1][0]

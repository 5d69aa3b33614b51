"""Drafters that copy: what followed the same words before, in the request's own text (n-gram, or prompt lookup: Saxena,
"Prompt Lookup Decoding", 2023) or also in what others of its namespace were answered (suffix: Oliaro et al.,
"SuffixDecoding", 2024). A proposal goes on as the places do that agree with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.batch import IntArray
from headrace.policy.speculation import NOTHING, Context, Proposal
from headrace.worker.drafters.occurrences import Occurrences

_RUN = 2
_LONG_RUN = 3
_MOST_NAMESPACES = 64
_ODDS = (0.0, 0.3, 0.45, 0.6, 0.7, 0.78, 0.84, 0.88, 0.91, 0.93)
"""Odds that the next token repeats, by likeness. Each request's own record corrects them (policy/speculation.py)."""
_SUREST = 0.95


class _Own:
    """A request's own text, as far as it was seen."""

    __slots__ = ("serial", "text")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.text = Occurrences(_RUN)


class LookupDrafter:
    """past_tokens: how many tokens of past outputs are remembered, over all namespaces; 0 for none (n-gram)."""

    costly = False

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
        sources = [(text, text.alike(text.tokens))]
        for past in self._past.get(context.namespace, ()):
            sources.append((past, past.alike(text.tokens)))
        found = [(same, source.tokens, place) for source, places in sources for same, place in places]
        return _follow(found, context.most) if found else NOTHING


def _follow(found: list[tuple[int, list[int], int]], most: int) -> Proposal:
    """Go on as the places do, as long as some are left; of those that differ, the likelier lead."""
    tokens: list[int] = []
    odds: list[float] = []
    chance = 1.0
    while found and len(tokens) < most:
        weights: dict[int, float] = {}
        for same, text, place in found:
            # The likest place counts most, and one that agrees with it by chance hardly.
            weights[text[place]] = weights.get(text[place], 0.0) + 2.0 ** min(same, 24)
        token = max(weights, key=weights.__getitem__)
        agreeing = [(same + 1, text, place + 1) for same, text, place in found if text[place] == token]
        best = max(same for same, _, _ in agreeing) - 1
        chance *= (_ODDS[best] if best < len(_ODDS) else _SUREST) * weights[token] / sum(weights.values())
        tokens.append(token)
        odds.append(chance)
        found = [one for one in agreeing if one[2] < len(one[1])]
    return Proposal(tokens, odds)

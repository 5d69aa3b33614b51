"""Drafters that copy: what followed the same words before, in the request's own text (n-gram, or prompt lookup: Saxena,
"Prompt Lookup Decoding", 2023) or also in what others of its namespace were answered (suffix: Oliaro et al.,
"SuffixDecoding", 2024). A proposal goes on as the places do that agree with each other (csrc/lookup.cpp): it is looked
for in every step, when caches have just been swept by the model's weights, so it must touch little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.batch import IntArray
from headrace.ops.kernels import kernels
from headrace.policy.speculation import NOTHING, Context, Proposal

_RUN = 1
_LONG_RUN = 2
_MOST_NAMESPACES = 64


class LookupDrafter:
    """past_tokens: how many tokens of past outputs are remembered, over all namespaces; 0 for none (n-gram)."""

    costly = False
    copy = None

    def __init__(self, *, past_tokens: int = 0) -> None:
        self._past_tokens = past_tokens
        # By slot, whose (serial) and its text as far as it was seen; by namespace, past outputs.
        self._own: dict[int, tuple[int, Any]] = {}
        self._past: dict[tuple[str, str], list[Any]] = {}
        self._held = 0

    def propose(self, contexts: Sequence[Context]) -> list[Proposal]:
        return [self._propose(context) for context in contexts]

    def remember(self, namespace: tuple[str, str], tokens: IntArray, prompt_len: int) -> None:
        output = tokens[max(0, prompt_len - _LONG_RUN) :]
        if not self._past_tokens or len(output) <= _LONG_RUN or len(output) > self._past_tokens:
            return
        texts = self._past.pop(namespace, [])
        # The latest used stands last: the first is the first to be forgotten.
        self._past[namespace] = texts
        if not texts or len(texts[-1]) > self._past_tokens // 16:
            texts.append(kernels.Text(_LONG_RUN))
        texts[-1].extend(output)
        self._held += len(output)
        while self._held > self._past_tokens or len(self._past) > _MOST_NAMESPACES:
            oldest = next(iter(self._past))
            self._held -= len(self._past[oldest].pop(0))
            if not self._past[oldest]:
                del self._past[oldest]

    def _propose(self, context: Context) -> Proposal:
        serial, text = self._own.get(context.slot, (-1, None))
        if serial != context.serial:
            text = kernels.Text(_RUN)
            self._own[context.slot] = context.serial, text
        past = self._past.get(context.namespace, [])
        tokens, odds = text.guess(context.tokens, past, context.most, context.least)
        return Proposal(tokens, odds) if tokens else NOTHING

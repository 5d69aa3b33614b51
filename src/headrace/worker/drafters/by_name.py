"""Which drafter a setting means."""

from __future__ import annotations

from headrace.policy.speculation import Drafter
from headrace.worker.drafters.lookup import LookupDrafter

PAST_TOKENS = 100_000
"""Tokens of past outputs that the suffix drafter remembers, at about 30 bytes each."""


def lookup_drafter(method: str) -> Drafter | None:
    """None where nothing is looked up: no guessing, or guessing by a model."""
    if method == "ngram":
        return LookupDrafter()
    return LookupDrafter(past_tokens=PAST_TOKENS) if method == "suffix" else None

"""What the prefix cache did for one request: how many tokens came from which tier, and why no more did."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class Miss(enum.StrEnum):
    """Why the cached prefix ends where it ends. NOTHING: all that may come from the cache did. NEW: nobody went on from
    here before. DIVERGED: others went on with other tokens. EVICTED: it was known, and its blocks were given to
    somebody else. NAMESPACE: it is known under another cache_salt only. SCORED: positions from here on are computed
    for their prompt log-probabilities. OFF: there is no prefix cache."""

    NOTHING = "nothing"
    NEW = "new"
    DIVERGED = "diverged"
    EVICTED = "evicted"
    NAMESPACE = "namespace"
    SCORED = "scored"
    OFF = "off"


class CacheReport(msgspec.Struct, frozen=True):
    """device, host, disk: tokens of the prefix by the tier that had them; their sum is cached_tokens. miss says why the
    token at index `at` is not among them: with DIVERGED, token is the request's there and others those of other
    requests (a few of them); with EVICTED, its block was taken at evicted_at (seconds on the engine's clock) for the
    request evicted_for. waited_for: the request that was computing the same prefix, if this one waited for it."""

    device: int = 0
    host: int = 0
    disk: int = 0
    at: int = 0
    miss: Miss = Miss.OFF
    token: int | None = None
    others: tuple[int, ...] = ()
    evicted_at: float | None = None
    evicted_for: str | None = None
    waited_for: str | None = None

    @property
    def cached_tokens(self) -> int:
        return self.device + self.host + self.disk

    def because(self, miss: Miss, **why: Any) -> CacheReport:
        """The same, with the reason why there is no more."""
        return msgspec.structs.replace(self, miss=miss, **why)

"""Which requests are computed on one replica and answered on another, and on which: the decisions of a fleet with a
pool for prefill and one for decode. A prompt of which little is left to compute stays on one node of the decode pool:
sending it would take longer than what it holds up there. Pure, as routers are (routing.py).

What replicas of the decode pool have cached is assumed by what was sent there.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from headrace.policy.replica import Loads, Numbers, Speed
from headrace.policy.routing import TYPICAL_ANSWER, Ask, Assumed, PrefixIndex

MIN_TOKENS = 512
"""Tokens left to compute from which a prompt goes to the prefill pool, where nobody says."""


class Disaggregation:
    """replicas: of the decode pool, each with so many blocks of block_size tokens. speed: theirs. min_tokens: left to
    compute, from which a prompt goes to the prefill pool. answer: tokens of a typical one."""

    def __init__(
        self,
        replicas: int,
        blocks: int,
        block_size: int,
        speed: Speed,
        *,
        min_tokens: int = MIN_TOKENS,
        answer: int = TYPICAL_ANSWER,
    ) -> None:
        self._index = PrefixIndex(replicas)
        self._assumed = Assumed(self._index, [blocks] * replicas)
        self._blocks = blocks
        self._block_size = block_size
        self._speed = speed
        self._min_tokens = min_tokens
        self._answer = answer

    def stays(self, ask: Ask, loads: Loads, *, always: bool = False) -> int | None:
        """The decode replica that computes this prompt itself: the one that is predicted to send the first token
        soonest, of those on which little is left to compute; always: of all. None if it goes to the prefill pool."""
        cached = self._cached(ask)
        fit = loads.up & ((ask.tokens - cached < self._min_tokens) | always)
        if not fit.any():
            return None
        seconds = self._speed.first_token_s(loads, ask.tokens, cached) + self._speed.crowding_s(loads, self._answer)
        return int(np.where(fit, seconds, np.inf).argmin())

    def receiver(self, ask: Ask, loads: Loads, token_s: Numbers, latency_s: Numbers) -> int | None:
        """The decode replica to which a prompt's keys and values go: the least of how long they are on their way and of
        how much longer an answer takes beside those that run there. token_s, latency_s float64 [replicas]: seconds for
        each token and for the way itself, as busy and as far as it is. None if nobody has room now."""
        cached = self._cached(ask)
        needed = -(-(ask.tokens - cached) // self._block_size) + 1
        room = loads.up & ((loads.blocks + needed / self._blocks <= 1) | (loads.requests == 0))
        if not room.any():
            return None
        seconds = latency_s + token_s * (ask.tokens - cached) + self._speed.crowding_s(loads, self._answer)
        return int(np.where(room, seconds, np.inf).argmin())

    def sent(self, replica: int, names: Sequence[Hashable]) -> None:
        """This prompt is there, or on its way."""
        self._assumed.sent(replica, names)

    def forget(self, replica: int) -> None:
        """What this replica had cached is gone."""
        self._index.cleared(replica)
        self._assumed.forget(replica)

    def _cached(self, ask: Ask) -> Numbers:
        return np.minimum(self._index.depths(ask.names) * self._block_size, ask.tokens - 1)

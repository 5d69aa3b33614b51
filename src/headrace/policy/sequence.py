"""Sequence: what the scheduler remembers about one request while it waits, runs, or has been preempted. While it
runs, its growing numbers and tokens live in policy/slots.py; `tokens` here is the copy from which it (re)joins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.batch import IntArray
from headrace.core.request import MOVES, CacheHint, Request, RequestState, SamplingParams
from headrace.policy.cache_report import CacheReport

NOWHERE = -1
_MOST_DRAFTS = 2**31 - 1


@dataclass(slots=True, eq=False)
class Sequence:
    """ticket: order of arrival, kept through preemptions. tokens: int32, known and named, prompt first; the request's
    own lists are not kept. limit: tokens, prompt and output, at which it ends. scored: prompt positions whose
    log-probabilities were handed out. cached_tokens: prefix hit of the first admission, -1 before it; cache says
    more of it. awaited: the last request whose computation of the same prefix it waited for.
    fetched: whether it has waited for the disk.

    priority: its class; effective: the class it is served in, which ageing betters. account: where its tenant's tokens
    are counted (fairness.py), paid: positions that were paid for or came free. passed: how many requests from behind
    it were served while it did not fit. looked: when it last did not: its tokens, how many whole blocks of them the
    prefix cache knew, and how many it had been given by then. draft_most: tokens to guess ahead at most."""

    request_id: str
    ticket: int
    tokens: IntArray
    prompt_len: int
    limit: int
    params: SamplingParams
    seed: int
    choice: int
    eos_ids: tuple[int, ...]
    cache_salt: str
    cache_hint: CacheHint | None = None
    priority: int = 0
    tenant: str = ""
    arrived: float = 0.0
    state: RequestState = RequestState.WAITING
    slot: int = -1
    scored: int = 0
    cached_tokens: int = -1
    preemptions: int = 0
    cache: CacheReport | None = None
    awaited: str | None = None
    fetched: bool = False
    effective: int = 0
    account: int = NOWHERE
    paid: int = 0
    passed: int = 0
    looked: tuple[int, int, int] | None = None
    draft_most: int = 0

    @classmethod
    def of(cls, request: Request, ticket: int, now: float = 0.0) -> Sequence:
        prompt_len = len(request.prompt_ids)
        return cls(
            request_id=request.request_id,
            ticket=ticket,
            tokens=_known_tokens(request),
            prompt_len=prompt_len,
            limit=prompt_len + request.max_tokens,
            params=request.params,
            seed=request.seed,
            choice=request.choice,
            eos_ids=request.eos_ids,
            cache_salt=request.cache_salt,
            cache_hint=request.cache_hint,
            priority=request.priority,
            effective=request.priority,
            tenant=request.tenant,
            arrived=now,
            draft_most=_MOST_DRAFTS if (most := request.num_speculative_tokens) is None else min(most, _MOST_DRAFTS),
        )

    @property
    def needed(self) -> int:
        """Positions to compute before its next token: all known ones, but never the last of all."""
        return min(len(self.tokens), self.limit - 1)

    @property
    def scoring(self) -> bool:
        """Whether prompt log-probabilities are still owed."""
        return self.params.prompt_logprobs is not None and self.scored < self.prompt_len - 1

    @property
    def cacheable(self) -> int:
        """Most tokens that may come from the prefix cache: all but the last known, which yields the next token;
        with prompt log-probabilities, none beyond the first position they still need."""
        most = len(self.tokens) - 1
        return min(most, self.scored) if self.scoring else most

    def move(self, state: RequestState) -> None:
        """Raises ValueError on a move that MOVES does not allow."""
        if state not in MOVES[self.state]:
            raise ValueError(f"request {self.request_id}: illegal move from {self.state.value} to {state.value}")
        self.state = state


def _known_tokens(request: Request) -> IntArray:
    prompt: IntArray = np.array(request.prompt_ids, np.int32)
    return np.concatenate([prompt, np.array(request.output_ids, np.int32)]) if request.output_ids else prompt

"""A replica's load as it is seen from outside: what it reported last, and how soon it would answer a new request. Loads
has one row for each replica of a fleet, so that a router looks at all of them in a few vector operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.policy.latency import Prior, StepWork

Numbers = npt.NDArray[np.float64]


class Load(msgspec.Struct, frozen=True, gc=False):
    """waiting: requests that have not begun. tokens: known ones yet to be computed, of those and of running requests.
    running: requests with a slot. blocks_used of blocks_total hold what running requests need."""

    waiting: int = 0
    tokens: int = 0
    running: int = 0
    blocks_used: int = 0
    blocks_total: int = 0


class Loads:
    """The last report of each replica, float64 [replicas] for each of Load's numbers but the last: blocks is the share
    of blocks in use. up bool [replicas]: which may be sent requests."""

    def __init__(self, replicas: int) -> None:
        self.up: npt.NDArray[np.bool_] = np.ones(replicas, np.bool_)
        self.waiting: Numbers = np.zeros(replicas)
        self.tokens: Numbers = np.zeros(replicas)
        self.running: Numbers = np.zeros(replicas)
        self.blocks: Numbers = np.zeros(replicas)

    def __len__(self) -> int:
        return len(self.waiting)

    def part(self, start: int, stop: int) -> Loads:
        """Those of some replicas, which are numbered from 0 there. Both stay the same."""
        part = Loads(0)
        for name in ("up", "waiting", "tokens", "running", "blocks"):
            setattr(part, name, getattr(self, name)[start:stop])
        return part

    def report(self, replica: int, load: Load) -> None:
        """What a replica says of itself replaces what was known of it."""
        self.waiting[replica] = load.waiting
        self.tokens[replica] = load.tokens
        self.running[replica] = load.running
        self.blocks[replica] = load.blocks_used / load.blocks_total if load.blocks_total else 0.0

    @property
    def requests(self) -> Numbers:
        """Requests that each replica has, waiting or running."""
        return self.waiting + self.running


@dataclass(frozen=True, slots=True)
class Speed:
    """What a router must know of a replica's latency model. token: seconds for each token of a prompt. step: of a
    decode step of one request, request: more for each one."""

    token: float
    step: float
    request: float

    @classmethod
    def of(cls, prior: Prior, chunk: int, context: int) -> Speed:
        """By a latency model, for prompts in chunks of so many tokens and sequences of about `context` tokens."""
        prompt = prior(StepWork(chunk, 1, prefill_pairs=chunk * context / 2, logit_rows=1, sampled_rows=1))
        one, many = (prior(StepWork(n, n, n * context, 0.0, n, n)) for n in (1, 33))
        return cls(prompt / chunk, one, max(0.0, many - one) / 32)

    def first_token_s(self, loads: Loads, tokens: int, cached: Numbers) -> Numbers:
        """Seconds until each replica would send the first token of a prompt of so many tokens, of which it has
        `cached` in its prefix cache: what is ahead of it, its own part, and a step beside those that run."""
        return self.token * (loads.tokens + tokens - cached) + self.step + self.request * loads.requests

    def crowding_s(self, loads: Loads, answer: int) -> Numbers:
        """Seconds that an answer of so many tokens takes longer on each replica, beside the requests that it has."""
        return answer * self.request * loads.requests

"""Runs requests through an Engine on NullExecutor and collects what each is sent."""

from __future__ import annotations

from headrace.core.config import Config
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.null_executor import NullExecutor, expected_tokens

VOCAB = 50


def capacity(*, slots=4, block_size=4, blocks=200, windows=(None,), max_model_len=64, vocab_size=VOCAB, tiers=None):
    counts = (blocks,) * len(windows) if isinstance(blocks, int) else blocks
    return Capacity(slots, block_size, counts, windows, max_model_len, vocab_size, tiers)


def make_engine(has=None, *, faults=None, **settings):
    return Engine(NullExecutor(has or capacity(), faults), Config(**settings))


def request(
    request_id,
    prompt,
    max_tokens=8,
    *,
    seed=0,
    eos_ids=(),
    cache_salt="",
    output_ids=(),
    choice=0,
    priority=0,
    tenant="",
    deadline=None,
    **params,
):
    return Request(
        request_id=request_id,
        prompt_ids=list(prompt),
        params=SamplingParams(max_tokens=max_tokens, **params),
        max_tokens=max_tokens,
        seed=seed,
        choice=choice,
        eos_ids=eos_ids,
        cache_salt=cache_salt,
        priority=priority,
        tenant=tenant,
        deadline=deadline,
        output_ids=list(output_ids),
    )


class Collected:
    """What one request was sent, joined."""

    def __init__(self):
        self.tokens, self.logprobs, self.prompt_logprobs = [], [], []
        self.last = None
        self.cached = 0

    def take(self, delta):
        assert self.last is None, f"{delta.request_id} was sent something after its end"
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs or []
        self.prompt_logprobs += delta.prompt_logprobs or []
        self.cached = max(self.cached, delta.cached_tokens)
        if delta.finish_reason is not None:
            self.last = delta

    @property
    def reason(self):
        return self.last.finish_reason if self.last else None


def collect(deltas, into):
    for delta in deltas:
        into.setdefault(delta.request_id, Collected()).take(delta)


def run(engine, requests=(), *, most_steps=20_000):
    """Add all requests at once and step until nothing is left."""
    sent = {}
    for one in requests:
        engine.add(one, 0.0)
    for _ in range(most_steps):
        if not engine.has_work:
            return sent
        collect(engine.step(lambda: 0.0), sent)
    raise AssertionError(f"still working after {most_steps} steps: {engine.stats()}")


def expected(one, has):
    return expected_tokens(one, has.vocab_size, has.windows)

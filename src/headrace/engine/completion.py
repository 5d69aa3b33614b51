"""Between a client's request and the engine's sequences: n choices become n Requests with resolved limits and
seeds, and their deltas are gathered into the answer. Shared by the server and by LLM, so that both refuse and
answer alike. Pure: no sockets, no event loop, and the one source of randomness is given.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headrace.core.errors import RequestError
from headrace.core.priority import DEFAULT_PRIORITY
from headrace.core.request import (
    SEED_LIMIT,
    CacheHint,
    ErrorCode,
    FinishReason,
    OutputDelta,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from headrace.engine.text_stream import Detokenizer, TextDelta, TextStream


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model allows. eos_ids end a sequence unless ignore_eos."""

    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...] = ()


class SeedSource:
    """Draws seeds for requests that bring none, from the seed of the configuration."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self) -> int:
        return self._random.randrange(SEED_LIMIT)


def build_requests(
    request_id: str,
    prompt_ids: list[int],
    params: SamplingParams,
    limits: Limits,
    seeds: SeedSource,
    *,
    cache_salt: str = "",
    cache_hint: CacheHint | None = None,
    num_speculative_tokens: int | None = None,
    priority: int = DEFAULT_PRIORITY,
    tenant: str = "",
) -> list[Request]:
    """The n sequences of one request, with ids "request_id-choice". request_id must be unique among live ones, so
    it is made at the edge and never taken from a client. max_tokens is resolved to what the context leaves.
    Raises RequestError naming the field."""
    assert not params.bad_words, "bad_words become token ids first: with_bad_words()"
    room = check_prompt(prompt_ids, params, limits)
    params.check_vocabulary(limits.vocab_size)
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    if params.min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens ({params.min_tokens}) does not fit: the prompt has {len(prompt_ids)} tokens and the context "
            f"{limits.max_model_len}, which leaves {room}",
            param="min_tokens",
        )
    seed = seeds.draw() if params.seed is None else params.seed
    eos_ids = () if params.ignore_eos else limits.eos_ids
    return [
        Request(
            request_id=f"{request_id}-{choice}",
            prompt_ids=prompt_ids,
            params=params,
            max_tokens=max_tokens,
            seed=seed,
            choice=choice,
            eos_ids=eos_ids,
            cache_salt=cache_salt,
            cache_hint=cache_hint,
            num_speculative_tokens=num_speculative_tokens,
            priority=priority,
            tenant=tenant,
        )
        for choice in range(params.n)
    ]


def with_bad_words(params: SamplingParams, encode: Callable[[str], list[int]]) -> SamplingParams:
    """params with bad_words as token ids: each word's usual tokens, by itself and after a space. encode: token ids of
    a text, without the model's BOS."""
    if not params.bad_words:
        return params
    words = {tuple(encode(space + word.lstrip())): None for word in params.bad_words for space in ("", " ")}
    given = tuple(tuple(word) for word in params.bad_words_token_ids)
    return msgspec.structs.replace(params, bad_words=(), bad_words_token_ids=(*given, *(w for w in words if w)))


def check_prompt(prompt_ids: list[int], params: SamplingParams, limits: Limits) -> int:
    """Tokens of context left for the output. Raises RequestError for a prompt that cannot be served."""
    if not prompt_ids:
        raise RequestError("the prompt has no tokens: give at least one", param="prompt")
    low, high = min(prompt_ids), max(prompt_ids)
    if low < 0 or high >= limits.vocab_size:
        raise RequestError(
            f"prompt: {low if low < 0 else high} is not a token id of this model (0 to {limits.vocab_size - 1})",
            param="prompt",
        )
    room = limits.max_model_len - len(prompt_ids)
    needed = 0 if params.max_tokens == 0 else 1
    if room < needed:
        raise RequestError(
            f"the prompt has {len(prompt_ids)} tokens, but this model's context is {limits.max_model_len} tokens, "
            f"prompt and output together: shorten the prompt to {limits.max_model_len - needed} or fewer",
            param="prompt",
            code="context_length_exceeded",
        )
    return room


@dataclass(slots=True)
class Choice:
    """One sequence's answer as it grows. push takes the engine's deltas in order and returns what is new for the
    client; once `finished`, and the engine has not said so itself, the request should be aborted."""

    index: int
    stream: TextStream
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    error: str | None = None
    code: ErrorCode | None = None

    @classmethod
    def of(cls, request: Request, detokenizer: Detokenizer) -> Choice:
        return cls(request.choice, TextStream(detokenizer, request.params, eos_ids=request.eos_ids))

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def cumulative_logprob(self) -> float | None:
        return None if self.logprobs is None else sum(t.logprob for t in self.logprobs)

    def push(self, delta: OutputDelta) -> TextDelta:
        new = self.stream.push(delta)
        if self.finished:
            return new
        self.text += new.text
        self.token_ids += new.token_ids
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        self.drafted += delta.drafted
        # What came true past a stop string is no part of the answer.
        self.accepted += min(delta.accepted, len(new.token_ids))
        if new.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += new.logprobs
        if new.prompt_logprobs is not None:
            self.prompt_logprobs = self.prompt_logprobs or []
            self.prompt_logprobs += new.prompt_logprobs
        self.finish_reason, self.stop_reason = new.finish_reason, new.stop_reason
        self.error, self.code = new.error, new.code
        return new

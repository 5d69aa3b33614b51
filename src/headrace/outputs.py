"""What LLM answers with, named and shaped as vLLM's outputs, so that code written for one reads the other."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Logprob:
    """rank: 1 is the likeliest token. decoded_token: the token's text by itself."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]
"""The likeliest tokens of one position, and the one that stands there."""


@dataclass(slots=True)
class CompletionOutput:
    """One choice. finish_reason: "stop", "length", "abort" or "error". stop_reason: the stop string, or the id of
    the stop token unless that was EOS."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """All choices of one prompt. prompt is None if ids were given. prompt_logprobs: one entry per prompt token, the
    first of them None."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = True

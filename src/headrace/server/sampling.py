"""A body's sampling fields become SamplingParams: the model's own defaults where the client says nothing, OpenAI's
where the model says nothing either. Ranges are checked by SamplingParams, for every door alike.
"""

from typing import Any

from headrace.core.errors import RequestError, shown
from headrace.core.request import MAX_LOGPROBS, SamplingParams
from headrace.server.protocol import SamplingBody
from headrace.server.structured import structured_outputs

_OWN_WAY = ("max_tokens", "prompt_logprobs", "logit_bias", "structured_outputs")
_COPIED = [
    name for name in SamplingParams.__struct_fields__ if name in SamplingBody.__struct_fields__ and name not in _OWN_WAY
]


def sampling_params(
    body: SamplingBody,
    defaults: tuple[tuple[str, float | int], ...],
    *,
    max_tokens: int | None,
    most: int,
    logprobs: int | None,
    echoed_logprobs: int | None = None,
) -> SamplingParams:
    """max_tokens None means what the context leaves; most: tokens of the context. echoed_logprobs: alternatives of an
    echoed prompt's tokens, None for no log-probabilities of them. Raises RequestError naming the field."""
    given: dict[str, Any] = {name: getattr(body, name) for name in _COPIED if getattr(body, name) is not None}
    if body.logit_bias is not None:
        given["logit_bias"] = _token_keys(body.logit_bias)
    given["structured_outputs"] = structured_outputs(body)
    _check_extras(body)
    if max_tokens is not None and max_tokens > most:
        raise RequestError(
            f"max_tokens must be at most {most}, this model's context, prompt and output together, got "
            f"{shown(max_tokens)}",
            param="max_tokens",
        )
    if body.prompt_logprobs is not None:
        check_range("prompt_logprobs", body.prompt_logprobs, 0, MAX_LOGPROBS)
    scored = [width for width in (body.prompt_logprobs, echoed_logprobs) if width is not None]
    return SamplingParams(
        **{**dict(defaults), **given},
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=max(scored, default=None),
    )


def check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise RequestError(f"{name} must be from {low} to {high}, got {shown(value)}", param=name)


def _token_keys(bias: dict[str, float]) -> dict[int, float]:
    keyed = {}
    for token, value in bias.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise RequestError(f"logit_bias must be keyed by token ids, got {token[:64]!r}", param="logit_bias")
        keyed[int(token)] = value
    return keyed


def _check_extras(body: SamplingBody) -> None:
    if body.cache_salt == "":
        raise RequestError("cache_salt must not be empty: leave it out instead", param="cache_salt")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError("prompt_logprobs cannot be streamed: leave out stream", param="prompt_logprobs")

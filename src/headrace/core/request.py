"""A request and its life: what the client asked for (SamplingParams), what the engine is given (Request: one
sequence, tokens only), the states it moves through, and what comes back (OutputDelta).

Everything here is plain data that crosses process borders as msgpack. Text never appears: tokenizing,
detokenizing and stop strings live with the API.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.errors import RequestError, shown
from headrace.core.priority import DEFAULT_PRIORITY, PRIORITY_LIMIT
from headrace.core.structured import StructuredOutputsParams

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_CHOICES = 128
MAX_STOP_CHARACTERS = 4096
MAX_BAD_WORDS = 1024
SEED_LIMIT = 2**63
LONGEST_HINT = 365 * 86_400.0
_MOST = 2**63 - 1


class FinishReason(enum.StrEnum):
    """Why a request ended. STOP: EOS, a stop token or a stop string. LENGTH: max_tokens or the context."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ErrorCode(enum.StrEnum):
    """Why a request ended with FinishReason.ERROR, where it was no fault while generating."""

    DEADLINE_EXCEEDED = "deadline_exceeded"


class RequestState(enum.Enum):
    """Where a request stands in the engine. The only legal moves are those in MOVES."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


MOVES: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset({RequestState.RUNNING, RequestState.FINISHED}),
    RequestState.RUNNING: frozenset({RequestState.PREEMPTED, RequestState.FINISHED}),
    RequestState.PREEMPTED: frozenset({RequestState.RUNNING, RequestState.FINISHED}),
    RequestState.FINISHED: frozenset(),
}


def _number(name: str, value: Any, low: float, high: float, allowed: str, *, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number {allowed}, got {shown(value)}", param=name)
    inside = (low < value if low_open else low <= value) and value <= high
    if not inside or not math.isfinite(value):
        raise RequestError(f"{name} must be {allowed}, got {shown(value)}", param=name)


def _integer(name: str, value: Any, low: int, high: int | None, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer {allowed}, got {shown(value)}", param=name)
    if value < low or (high is not None and value > high):
        raise RequestError(f"{name} must be {allowed}, got {shown(value)}", param=name)


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    """None, as other engines' callers write it, is none."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise RequestError(f"{name} must be a list, got {shown(value)}", param=name)
    return tuple(value)


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to generate. Names and meanings follow vLLM; every value is checked here, for every door.

    temperature 0 is greedy. top_k 0 or -1 is off. seed None: one is drawn at the edge. logprobs k: the sampled
    token's log-probability and the k likeliest, of the model's own distribution (before penalties, temperature
    and truncation). structured_outputs: the form that the output has. allowed_token_ids: no other token comes.
    bad_words: texts that no output holds in their usual tokens; bad_words_token_ids are those tokens, made of the
    texts at the edge (engine/completion.py), and what the engine goes by. Raises RequestError naming the field.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] | str = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        _integer("n", self.n, 1, MAX_CHOICES, f"from 1 to {MAX_CHOICES}")
        _number("presence_penalty", self.presence_penalty, -2, 2, "from -2 to 2")
        _number("frequency_penalty", self.frequency_penalty, -2, 2, "from -2 to 2")
        _number("repetition_penalty", self.repetition_penalty, 0, 100, "above 0 and at most 100", low_open=True)
        _number("temperature", self.temperature, 0, 2, "from 0 to 2")
        _number("top_p", self.top_p, 0, 1, "above 0 and at most 1", low_open=True)
        _integer("top_k", self.top_k, -1, None, "at least 1, or 0 or -1 for off")
        _number("min_p", self.min_p, 0, 1, "from 0 to 1")
        if self.seed is not None:
            _integer("seed", self.seed, -SEED_LIMIT, SEED_LIMIT - 1, "a 64-bit integer")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 0, None, "0 or more")
            # The context cuts it much shorter; no larger integer crosses a process border.
            msgspec.structs.force_setattr(self, "max_tokens", min(self.max_tokens, _MOST))
        _integer("min_tokens", self.min_tokens, 0, _MOST, f"from 0 to {_MOST}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens})", param="min_tokens"
            )
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                _integer(name, value, 0, MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}")
        if self.structured_outputs is not None:
            self._check_structured()
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {shown(getattr(self, name))}", param=name)
        self._check_stops()
        self._check_bias()
        self._check_tokens_kept_out()

    def _check_stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _listed("stop", self.stop)
        if len(stop) > MAX_STOP_STRINGS or not all(isinstance(s, str) and s for s in stop):
            raise RequestError(
                f"stop must be at most {MAX_STOP_STRINGS} non-empty strings, got {len(stop)}: {shown(stop)}",
                param="stop",
            )
        if longest := max((len(s) for s in stop if len(s) > MAX_STOP_CHARACTERS), default=0):
            raise RequestError(
                f"stop must be strings of at most {MAX_STOP_CHARACTERS} characters, got one of {longest}", param="stop"
            )
        msgspec.structs.force_setattr(self, "stop", stop)
        stop_token_ids = _listed("stop_token_ids", self.stop_token_ids)
        for token in stop_token_ids:
            _integer("stop_token_ids", token, 0, None, "made of token ids of 0 or more")
        msgspec.structs.force_setattr(self, "stop_token_ids", stop_token_ids)

    def _check_structured(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise RequestError(
                f"structured_outputs must be StructuredOutputsParams, got {shown(self.structured_outputs)}",
                param="structured_outputs",
            )
        against = {
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens > 0,
            "allowed_token_ids": self.allowed_token_ids is not None,
        }
        for name, given in against.items():
            if given:
                raise RequestError(
                    f"{name} does not go with structured_outputs: the form alone says what may come and where it ends",
                    param=name,
                )

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, dict | None):
            raise RequestError(
                f"logit_bias must map token ids to numbers, got {shown(self.logit_bias)}", param="logit_bias"
            )
        for token, bias in (self.logit_bias or {}).items():
            _integer("logit_bias", token, 0, None, "keyed by token ids of 0 or more")
            _number("logit_bias", bias, -100, 100, "from -100 to 100")

    def _check_tokens_kept_out(self) -> None:
        if self.allowed_token_ids is not None:
            allowed = _listed("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise RequestError(
                    "allowed_token_ids must not be empty: leave it out instead", param="allowed_token_ids"
                )
            for token in allowed:
                _integer("allowed_token_ids", token, 0, None, "made of token ids of 0 or more")
            msgspec.structs.force_setattr(self, "allowed_token_ids", allowed)
        words = _listed("bad_words", self.bad_words)
        if len(words) > MAX_BAD_WORDS or not all(isinstance(w, str) and w.strip() for w in words):
            raise RequestError(
                f"bad_words must be at most {MAX_BAD_WORDS} strings that are not blank, got {len(words)}: "
                f"{shown(words)}",
                param="bad_words",
            )
        if longest := max((len(w) for w in words if len(w) > MAX_STOP_CHARACTERS), default=0):
            raise RequestError(
                f"bad_words must be strings of at most {MAX_STOP_CHARACTERS} characters, got one of {longest}",
                param="bad_words",
            )
        msgspec.structs.force_setattr(self, "bad_words", words)
        given = _listed("bad_words_token_ids", self.bad_words_token_ids)
        sequences = tuple(_listed("bad_words_token_ids", word) for word in given)
        if not all(sequences):
            raise RequestError("bad_words_token_ids must be lists of at least one token id", param="bad_words")
        for token in (t for word in sequences for t in word):
            _integer("bad_words_token_ids", token, 0, None, "made of token ids of 0 or more")
        msgspec.structs.force_setattr(self, "bad_words_token_ids", sequences)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise RequestError if a token id lies outside the model's vocabulary."""
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
            for token in getattr(self, name) or ():
                if token >= vocab_size:
                    raise RequestError(
                        f"{name}: {shown(token)} is not a token id of this model (0 to {vocab_size - 1})", param=name
                    )
        for token in (t for word in self.bad_words_token_ids for t in word):
            if token >= vocab_size:
                raise RequestError(
                    f"bad_words_token_ids: {shown(token)} is not a token id of this model (0 to {vocab_size - 1})",
                    param="bad_words",
                )
        if self.top_k > vocab_size:
            msgspec.structs.force_setattr(self, "top_k", 0)


class CacheHint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request asks of the prefix cache for its own tokens once it has ended; they may be evicted all the same.
    pin: let them give way last, for this many seconds (true: for a year). ttl_s: let them give way first once they
    were not used for so many seconds. Raises RequestError naming the field."""

    pin: bool | float | None = None
    ttl_s: float | None = None

    def __post_init__(self) -> None:
        pin: Any = self.pin
        if isinstance(pin, bool):
            msgspec.structs.force_setattr(self, "pin", LONGEST_HINT if pin else None)
        for name in ("pin", "ttl_s"):
            if getattr(self, name) is not None:
                allowed = f"above 0 and at most {LONGEST_HINT:.0f} seconds"
                try:
                    _number(f"cache_hint.{name}", getattr(self, name), 0, LONGEST_HINT, allowed, low_open=True)
                except RequestError as error:
                    error.param = "cache_hint"
                    raise
        if self.pin is not None and self.ttl_s is not None:
            raise RequestError("cache_hint takes pin or ttl_s, not both", param="cache_hint")


class Request(msgspec.Struct, frozen=True):
    """One sequence for the engine: choice `choice` of a client's request.

    prompt_ids: the prompt's token ids (never empty), a list or an array('i'). output_ids: tokens generated before, when
    a request is replayed on another engine; they count as generated. max_tokens is resolved (never None) and counts
    output_ids too. seed is resolved. eos_ids end the request and are empty when EOS is ignored.
    Requests with different cache_salt never share cached blocks. priority: the lower number goes first. tenant: whose
    share of the engine this request uses, e.g. a name of the API key; "" is a tenant like any other. deadline:
    seconds after its arrival at the engine by which its first token is wanted. num_speculative_tokens: tokens to guess
    ahead at most; None for the engine's own setting, 0 for none.
    """

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    max_tokens: int
    seed: int
    choice: int = 0
    eos_ids: tuple[int, ...] = ()
    output_ids: list[int] = []
    cache_salt: str = ""
    priority: int = DEFAULT_PRIORITY
    tenant: str = ""
    deadline: float | None = None
    cache_hint: CacheHint | None = None
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        _integer("priority", self.priority, -PRIORITY_LIMIT, PRIORITY_LIMIT - 1, "a 32-bit integer")
        if self.deadline is not None:
            _number("deadline", self.deadline, 0, float("inf"), "at least 0 seconds")
        if self.num_speculative_tokens is not None:
            _integer("num_speculative_tokens", self.num_speculative_tokens, 0, _MOST, f"from 0 to {_MOST}")


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of one token: natural log, its rank (1 is the likeliest), and the likeliest tokens
    in falling order."""

    token: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class OutputDelta(msgspec.Struct, array_like=True, gc=False):
    """What a step brought for one request. Deltas of one request arrive in order; the last has finish_reason.

    prompt_logprobs come in pieces, each for the positions that this delta covers, in order, starting at
    position 1 (the first prompt token has none). stop_token is set when a stop or EOS token ended it (that
    token is then the last of token_ids). error is set with FinishReason.ERROR and may be shown to the client; code is
    set where that was no fault of ours. drafted: tokens that were guessed ahead, of which `accepted` came true.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    cached_tokens: int = 0
    error: str | None = None
    code: ErrorCode | None = None
    drafted: int = 0
    accepted: int = 0

    def absorb(self, later: OutputDelta) -> None:
        """Become this delta and the one that follows it, of the same request. Lists are not written to but replaced."""
        self.token_ids = self.token_ids + later.token_ids
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = (self.prompt_logprobs or []) + later.prompt_logprobs
        self.finish_reason = later.finish_reason
        self.stop_token = later.stop_token
        self.cached_tokens = max(self.cached_tokens, later.cached_tokens)
        self.error = later.error
        self.code = later.code
        self.drafted += later.drafted
        self.accepted += later.accepted

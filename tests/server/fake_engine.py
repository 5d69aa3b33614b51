"""An engine and a tokenizer small enough to see through: a token is a byte, and the engine says what it was told to."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from headrace.core.errors import EngineDeadError, RequestError
from headrace.core.request import FinishReason, OutputDelta, Request, TokenLogprobs
from headrace.engine.client_protocol import Health, HealthState
from headrace.engine.wire import Inspected, Ready, Stats
from headrace.policy.records import RequestRecord, StepRecord

EOS = 256
BOS = 257
WORD = 258
"""One token of several characters."""
WORD_BYTES = b"hello END x"
VOCAB = 259
CONTEXT = 200


class ByteDetokenizer:
    def __init__(self, skip: frozenset[int]) -> None:
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: list[int]) -> str:
        return self._decoder.decode(b"".join(token_bytes(i) for i in ids if i not in self._skip))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def token_bytes(token: int) -> bytes:
    return {EOS: b"<eos>", BOS: b"<bos>", WORD: WORD_BYTES}.get(token) or bytes([token])


class ByteTokenizer:
    def __init__(self, *, bos: bool = False) -> None:
        self.bos = bos
        self.encoded: list[int] = []
        """Length of each text encoded."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append(len(text))
        return ([BOS] if self.bos and add_special_tokens else []) + list(text.encode())

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def token_bytes(self, token: int, /) -> bytes:
        return token_bytes(token)

    def detokenizer(self, *, skip_special_tokens: bool = True, shown: tuple[str, ...] = ()) -> ByteDetokenizer:
        return ByteDetokenizer(frozenset({EOS, BOS}) if skip_special_tokens else frozenset())


class PlainTemplate:
    """Documents and the mood first, then role:content lines; refuses two messages of one role in a row."""

    variables = frozenset({"messages", "add_generation_prompt", "documents", "mood"})

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> list[int]:
        roles = [m["role"] for m in messages]
        if any(a == b for a, b in pairwise(roles)):
            raise RequestError("messages: roles must alternate", param="messages")
        text = "".join(f"<{d.get('text')}>" for d in documents or ()) + str((more or {}).get("mood", ""))
        text += "".join(f"{m['role']}:{m['content']}\n" for m in messages)
        text += "assistant:" if add_generation_prompt else ""
        return list((text.removesuffix("\n") if continue_final_message else text).encode())


def say(text: str) -> Callable[[Request], list[int]]:
    """A reply that ends by itself."""
    return lambda request: [*text.encode(), EOS]


def endless(request: Request) -> list[int]:
    return [ord("a") + i % 26 for i in range(CONTEXT)]


class FakeEngine:
    """An EngineClient. reply: tokens for a request. per_delta: tokens in each delta. delay: seconds before each
    delta. refuse: raised by add. fail_at: the delta that is an error instead. dead: as a killed process."""

    def __init__(self) -> None:
        self.reply: Callable[[Request], list[int]] = say("Hello, world!")
        self.per_delta = 1
        self.delay = 0.0
        self.accept_delay = 0.0
        self.refuse: Callable[[Request], Exception | None] = lambda request: None
        self.fail_at: int | None = None
        self.cached_tokens = 0
        self.dead = False
        self.restarts = 0
        self.state = Health(HealthState.HEALTHY)
        self.records: list[RequestRecord] = []
        self.steps: list[StepRecord] = []
        self.added: list[Request] = []
        self.aborted: list[str] = []
        self.live: set[str] = set()
        self.produced = 0

    @property
    def ready(self) -> Ready:
        return Ready(CONTEXT, VOCAB, "fp-test", 100, 16, {"model": "fake"})

    async def add(self, request: Request) -> AsyncIterator[OutputDelta]:
        if self.dead:
            raise EngineDeadError("process 4242 was killed by signal 9")
        self.live.add(request.request_id)
        self.added.append(request)
        try:
            await asyncio.sleep(self.accept_delay)
            error = self.refuse(request)
            if error is not None:
                raise error
        except BaseException:
            self.live.discard(request.request_id)
            raise
        return self._deltas(request)

    async def _deltas(self, request: Request) -> AsyncIterator[OutputDelta]:
        tokens, reason, stop_token = self._tokens(request)
        prompt_logprobs = None
        if request.params.prompt_logprobs is not None:
            prompt_logprobs = [_logprob(t, request.params.prompt_logprobs) for t in request.prompt_ids[1:]]
        groups = [tokens[i : i + self.per_delta] for i in range(0, len(tokens), self.per_delta)] or [[]]
        for number, group in enumerate(groups):
            await asyncio.sleep(self.delay)
            if self.dead:
                raise EngineDeadError("process 4242 was killed by signal 9")
            if request.request_id not in self.live:
                yield OutputDelta(request.request_id, finish_reason=FinishReason.ABORT)
                return
            if number == self.fail_at:
                self.live.discard(request.request_id)
                yield OutputDelta(
                    request.request_id, finish_reason=FinishReason.ERROR, error="the logits were not finite"
                )
                return
            last = number == len(groups) - 1
            logprobs = None
            if request.params.logprobs is not None:
                logprobs = [_logprob(t, request.params.logprobs) for t in group]
            if last:
                self.live.discard(request.request_id)
            self.produced += len(group)
            yield OutputDelta(
                request.request_id,
                group,
                logprobs,
                prompt_logprobs if number == 0 else None,
                reason if last else None,
                stop_token if last else None,
                self.cached_tokens if number == 0 else 0,
            )

    def _tokens(self, request: Request) -> tuple[list[int], FinishReason, int | None]:
        stops = {*request.eos_ids, *request.params.stop_token_ids}
        tokens: list[int] = []
        for token in self.reply(request)[: request.max_tokens]:
            tokens.append(token)
            if token in stops and len(tokens) > request.params.min_tokens:
                return tokens, FinishReason.STOP, token
        return tokens, FinishReason.LENGTH, None

    async def abort(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        self.live.difference_update(request_ids)

    def stats(self) -> Stats:
        if self.dead:
            raise EngineDeadError("process 4242 was killed by signal 9")
        return Stats(running=len(self.live), blocks_used=len(self.live), blocks_total=100)

    async def inspect(self, request_id: str = "", steps: int = 0) -> Inspected:
        if self.dead:
            raise EngineDeadError("process 4242 was killed by signal 9")
        found = [r for r in self.records if r.request_id.startswith(request_id)] if request_id else []
        return Inspected(1, found, self.steps[:steps])

    def health(self) -> Health:
        return self.state


def _logprob(token: int, top: int) -> TokenLogprobs:
    """The token is the likeliest; the next ones in the alphabet follow."""
    return TokenLogprobs(token, -0.5, 1, [((token + i) % VOCAB, -0.5 - i) for i in range(top)])

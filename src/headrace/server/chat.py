"""POST /v1/chat/completions: a conversation goes through the model's template to the engine, and comes back as one
answer or as a stream of deltas.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.core.errors import RequestError
from headrace.core.request import MAX_LOGPROBS, SamplingParams, TokenLogprobs
from headrace.engine.completion import Choice, build_requests
from headrace.server.answer import Head, new_head
from headrace.server.fields import parse
from headrace.server.generation import Generation, Sequence
from headrace.server.logprobs import chat_logprobs
from headrace.server.messages import check_messages
from headrace.server.protocol import (
    AssistantMessage,
    ChatBody,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    TokenizeBody,
)
from headrace.server.sampling import sampling_params
from headrace.server.service import Service, service_of
from headrace.server.sse import EventStream, whole_answer


async def chat_completions(request: Request) -> Response | ASGIApp:
    service = service_of(request)
    arrival = time.monotonic()
    service.check_taking_requests()
    request_id = service.new_id("chatcmpl")
    body, sequences = await service.bodies.prepare(request, lambda fields: _prepare(service, fields, request_id))
    top = (body.top_logprobs or 0) if body.logprobs else None
    generation = Generation(service, sequences, arrival)
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        head = new_head(service, request_id, "chat.completion.chunk", with_usage=with_usage)
        events = ChatAnswer(service, generation, head, top).events()
        return EventStream(generation, events, service.settings.stall_timeout)
    head = new_head(service, request_id, "chat.completion")
    return await whole_answer(request, generation, ChatAnswer(service, generation, head, top).whole)


def encode_chat(service: Service, body: ChatBody | TokenizeBody) -> list[int]:
    """Token ids of a body's conversation by the model's template. Raises RequestError naming the message."""
    template = service.chat_template
    if template is None:
        raise RequestError(
            "this model has no chat template: use /v1/completions", param="messages", code="no_chat_template"
        )
    messages = check_messages(body.messages, most=service.limits.max_model_len)
    service.check_prompt_bytes(sum(len(m["content"].encode()) for m in messages), "messages")
    continued = body.continue_final_message is True
    prompted = not continued if body.add_generation_prompt is None else body.add_generation_prompt
    return template.encode(messages, add_generation_prompt=prompted, continue_final_message=continued)


def _prepare(service: Service, fields: dict[str, Any], request_id: str) -> tuple[ChatBody, list[Sequence]]:
    """Everything before the engine: checks, template, tokens."""
    body = parse(fields, ChatBody)
    service.check_model(body.model)
    params = _params(service, body)
    try:
        requests = build_requests(
            request_id,
            encode_chat(service, body),
            params,
            service.limits,
            service.seeds,
            cache_salt=body.cache_salt or "",
        )
    except RequestError as error:
        if error.param == "prompt":
            error.param = "messages"
        raise
    sequences = [Sequence(r.choice, r, Choice.of(r, service.new_detokenizer(params))) for r in requests]
    return body, sequences


def _params(service: Service, body: ChatBody) -> SamplingParams:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise RequestError(
            f"max_tokens ({body.max_tokens}) is the older name of max_completion_tokens "
            f"({body.max_completion_tokens}): give one of them",
            param="max_tokens",
        )
    if body.top_logprobs is not None:
        if not body.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        if not 0 <= body.top_logprobs <= MAX_LOGPROBS:
            raise RequestError(
                f"top_logprobs must be from 0 to {MAX_LOGPROBS}, got {body.top_logprobs}", param="top_logprobs"
            )
    try:
        return sampling_params(
            body,
            service.settings.sampling_defaults,
            max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
    except RequestError as error:
        if error.param == "max_tokens" and body.max_tokens is None:
            spelled = "max_completion_tokens"
            raise RequestError(error.message.replace("max_tokens", spelled), param=spelled) from None
        raise


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Writes one generation as a chat completion. top: alternatives per token, None without logprobs."""

    service: Service
    generation: Generation
    head: Head
    top: int | None

    async def whole(self) -> bytes:
        async for _ in self.generation.deltas():
            pass
        return msgspec.json.encode(
            ChatCompletion(
                id=self.head.id,
                created=self.head.created,
                model=self.head.model,
                choices=[self._choice(s) for s in self.generation.sequences],
                usage=self.generation.usage(),
                system_fingerprint=self.head.fingerprint,
            )
        )

    async def events(self) -> AsyncIterator[bytes]:
        begun = [False] * len(self.generation.sequences)
        async for sequence, new in self.generation.deltas():
            if not begun[sequence.index]:
                begun[sequence.index] = True
                yield self.head.event([ChatChunkChoice(sequence.index, ChatDelta("assistant", ""))])
            logprobs = self._logprobs(new.logprobs)
            if new.text or logprobs is not None or new.finish_reason is not None:
                delta = ChatDelta(content=new.text) if new.text else ChatDelta()
                yield self.head.event(
                    [ChatChunkChoice(sequence.index, delta, logprobs, new.finish_reason, new.stop_reason)]
                )
        if self.head.with_usage:
            yield self.head.event([], self.generation.usage())

    def _choice(self, sequence: Sequence) -> ChatChoice:
        choice = sequence.choice
        logprobs = None if self.top is None else chat_logprobs(self.service.tokenizer, choice.logprobs or [], self.top)
        return ChatChoice(
            sequence.index,
            AssistantMessage("assistant", choice.text),
            logprobs,
            choice.finish_reason,
            choice.stop_reason,
        )

    def _logprobs(self, new: list[TokenLogprobs] | None) -> ChatLogprobs | None:
        if self.top is None or not new:
            return None
        return chat_logprobs(self.service.tokenizer, new, self.top)

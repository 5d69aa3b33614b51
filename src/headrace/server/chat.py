"""POST /v1/chat/completions: a conversation goes through the model's template to the engine, and comes back as one
answer or as a stream of deltas.
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.core.errors import RequestError
from headrace.core.request import MAX_LOGPROBS, FinishReason, SamplingParams, TokenLogprobs
from headrace.engine.completion import Choice, build_requests, with_bad_words
from headrace.engine.text_stream import TextDelta
from headrace.server.answer import Head, new_head
from headrace.server.answer_reader import Reading, read_as
from headrace.server.beginning import begin
from headrace.server.chat_prompt import encode_chat
from headrace.server.fields import parse
from headrace.server.generation import Generation, Sequence
from headrace.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from headrace.server.message_parts import delta_of, message_of
from headrace.server.messages import check_message
from headrace.server.prompts import truncated
from headrace.server.protocol import (
    AssistantMessage,
    ChatBody,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    PromptLogprobs,
    Unset,
)
from headrace.server.sampling import check_range, sampling_params
from headrace.server.service import Service
from headrace.server.sse import EventStream, whole_answer
from headrace.server.tools.choice import tool_choice

_ENDING_TOKENS = 8
"""Tokens at a prompt's end that tell whether it has opened the reasoning."""


async def chat_completions(request: Request) -> Response | ASGIApp:
    generation, request_id, body, reading = await begin(request, "chatcmpl", prepare_chat)
    service = generation.service
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    answer = ChatAnswer(service, generation, new_head(service, request_id, kind, body), body, reading)
    if body.stream:
        return EventStream(generation, answer.events(), service.settings.stall_timeout)
    return await whole_answer(request, generation, answer.whole)


def prepare_chat(service: Service, fields: dict[str, Any], request_id: str) -> tuple[ChatBody, list[Sequence], Reading]:
    """Everything before the engine: checks, template, tokens."""
    body = parse(fields, ChatBody)
    service.check_model(body.model)
    params = _params(service, body)
    tools = tool_choice(body, service.settings.tool_format)
    prompt_ids = encode_chat(service, body, None if tools is None else tools.shown)
    reading = read_as(
        tools, service.settings.reasoning_parser, lambda: service.tokenizer.decode(prompt_ids[-_ENDING_TOKENS:])
    )
    params = reading.held_to_form(params)
    prompt_ids = truncated(service, prompt_ids, body, params.max_tokens)
    try:
        requests = build_requests(
            request_id,
            prompt_ids,
            with_bad_words(params, service.encode_word),
            service.limits,
            service.seeds,
            cache_salt=body.cache_salt or "",
            cache_hint=body.cache_hint,
            num_speculative_tokens=body.num_speculative_tokens,
        )
    except RequestError as error:
        if error.param == "prompt":
            error.param = "messages"
        raise
    echo = _echoed(body)
    sequences = [
        Sequence(r.choice, r, Choice.of(r, service.new_detokenizer(params, reading.shown)), echo) for r in requests
    ]
    return body, sequences, reading


def _echoed(body: ChatBody) -> str | None:
    """With echo, the answer begins with the last message, if that is the assistant's own."""
    last = check_message(body.messages[-1], "messages[-1]") if body.messages and body.echo else {}
    return last["content"] if last.get("role") == "assistant" else None


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
        check_range("top_logprobs", body.top_logprobs, 0, MAX_LOGPROBS)
    try:
        return sampling_params(
            body,
            service.settings.sampling_defaults,
            max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            most=service.limits.max_model_len,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
    except RequestError as error:
        if error.param == "max_tokens" and body.max_tokens is None:
            spelled = "max_completion_tokens"
            raise RequestError(error.message.replace("max_tokens", spelled), param=spelled) from None
        raise


class ChatAnswer:
    """Writes one generation as a chat completion."""

    def __init__(self, service: Service, generation: Generation, head: Head, body: ChatBody, reading: Reading) -> None:
        self.service = service
        self.generation = generation
        self.head = head
        self.names = TokenNames(service.tokenizer, as_ids=body.return_tokens_as_token_ids is True)
        self.top = (body.top_logprobs or 0) if body.logprobs else None
        self.prompt_top = body.prompt_logprobs
        self.readers = [reading.new_reader() for _ in generation.sequences]

    async def whole(self) -> bytes:
        await self.generation.run()
        return msgspec.json.encode(
            ChatCompletion(
                id=self.head.id,
                created=self.head.created,
                model=self.head.model,
                choices=[self._choice(s) for s in self.generation.sequences],
                usage=self.generation.usage(),
                system_fingerprint=self.head.fingerprint,
                prompt_logprobs=self._prompt_logprobs(),
                prompt_token_ids=self.head.token_ids(self.generation.sequences[0].request.prompt_ids),
            )
        )

    async def events(self) -> AsyncIterator[bytes]:
        begun = [False] * len(self.generation.sequences)
        async for sequence, new in self.generation.deltas():
            if not begun[sequence.index]:
                first = not any(begun)
                begun[sequence.index] = True
                yield self.head.event(
                    self.generation,
                    [ChatChunkChoice(sequence.index, ChatDelta("assistant", sequence.echo or ""))],
                    prompt_token_ids=self.head.token_ids(sequence.request.prompt_ids) if first else msgspec.UNSET,
                )
            logprobs, ids = self._logprobs(new.logprobs), self.head.token_ids(new.token_ids)
            delta = self._delta(sequence, new)
            if delta is not None or logprobs is not None or ids or new.finish_reason is not None:
                reason = self._finish_reason(sequence, new.finish_reason)
                yield self.head.event(
                    self.generation,
                    [ChatChunkChoice(sequence.index, delta or ChatDelta(), logprobs, reason, new.stop_reason, ids)],
                )
        if self.head.with_usage:
            yield self.head.event(self.generation, [])

    def _choice(self, sequence: Sequence) -> ChatChoice:
        choice = sequence.choice
        logprobs = None if self.top is None else chat_logprobs(self.names, choice.logprobs or [], self.top)
        reader = self.readers[sequence.index]
        echo = sequence.echo or ""
        if reader is None:
            message = AssistantMessage("assistant", echo + choice.text)
        else:
            message = message_of(reader.whole(choice.text), echo)
        return ChatChoice(
            sequence.index,
            message,
            logprobs,
            self._finish_reason(sequence, choice.finish_reason),
            choice.stop_reason,
            self.head.token_ids(choice.token_ids),
        )

    def _delta(self, sequence: Sequence, new: TextDelta) -> ChatDelta | None:
        """What new text adds to a choice; None if nothing."""
        reader = self.readers[sequence.index]
        if reader is None:
            return ChatDelta(content=new.text) if new.text else None
        return delta_of(reader.feed(new.text, last=new.finish_reason is not None))

    def _finish_reason(self, sequence: Sequence, reason: FinishReason | None) -> str | None:
        """An answer that calls tools ends with tool_calls, unless it was cut."""
        reader = self.readers[sequence.index]
        return "tool_calls" if reason is FinishReason.STOP and reader is not None and reader.called else reason

    def _prompt_logprobs(self) -> PromptLogprobs | Unset:
        if self.prompt_top is None:
            return msgspec.UNSET
        scored = self.generation.sequences[0].choice.prompt_logprobs or []
        return prompt_logprobs(self.service.tokenizer, scored, self.prompt_top)

    def _logprobs(self, new: list[TokenLogprobs] | None) -> ChatLogprobs | None:
        if self.top is None or not new:
            return None
        return chat_logprobs(self.names, new, self.top)

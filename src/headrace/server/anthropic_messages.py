"""POST /v1/messages: a conversation in Anthropic's shape, for clients that speak it. Text only; it goes the way of a
chat, and comes back as one message or as Anthropic's events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.core.errors import RequestError
from headrace.core.request import FinishReason
from headrace.server.dialects import begin_as_chat, event, joined_text, text_pieces
from headrace.server.errors import describe
from headrace.server.fields import parse
from headrace.server.generation import Generation
from headrace.server.sse import EventStream, whole_answer

_COPIED = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "priority", "seed")


class MessagesBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    messages: list[Any] | None = None
    system: str | list[Any] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    thinking: dict[str, Any] | None = None
    service_tier: str | None = None
    priority: int | str | None = None
    seed: int | None = None


async def create_message(request: Request) -> Response | ASGIApp:
    body, generation, request_id = await begin_as_chat(request, "msg", _as_chat)
    service = generation.service
    if body.stream:
        events = _events(generation, request_id)
        return EventStream(generation, events, service.settings.stall_timeout, done=b"", fault=_fault)

    async def whole() -> bytes:
        await generation.run()
        return msgspec.json.encode(_message(generation, request_id, finished=True))

    return await whole_answer(request, generation, whole)


def _as_chat(fields: dict[str, Any]) -> dict[str, Any]:
    body = parse(fields, MessagesBody)
    if body.max_tokens is None or body.max_tokens < 1:
        raise RequestError("max_tokens is required, and must be at least 1", param="max_tokens")
    if body.thinking is not None and body.thinking != {"type": "disabled"}:
        raise RequestError('thinking may only be {"type": "disabled"} here', param="thinking")
    if body.service_tier not in (None, "auto", "standard_only"):
        raise RequestError("service_tier must be auto or standard_only", param="service_tier")
    messages: list[dict[str, Any]] = []
    if body.system is not None:
        messages.append({"role": "system", "content": joined_text(body.system, "system", ("text",))})
    for i, message in enumerate(body.messages or ()):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise RequestError(f"messages[{i}].role must be user or assistant", param=f"messages[{i}]")
        content = joined_text(message.get("content"), f"messages[{i}].content", ("text",))
        messages.append({"role": message["role"], "content": content})
    if not messages or messages[-1]["role"] == "system":
        raise RequestError("messages must have at least one message", param="messages")
    chat = {name: getattr(body, name) for name in _COPIED}
    # A last message of the assistant's own is the answer's beginning.
    continued = messages[-1]["role"] == "assistant"
    return chat | {"messages": messages, "stop": body.stop_sequences, "continue_final_message": continued}


def _message(generation: Generation, request_id: str, *, finished: bool) -> dict[str, Any]:
    choice, usage = generation.sequences[0].choice, generation.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "id": request_id,
        "type": "message",
        "role": "assistant",
        "model": generation.service.settings.model_name,
        "content": [{"type": "text", "text": choice.text}] if finished else [],
        "stop_reason": _stop_reason(generation) if finished else None,
        "stop_sequence": _stop_sequence(generation) if finished else None,
        "usage": {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.completion_tokens,
        },
    }


def _stop_sequence(generation: Generation) -> str | None:
    reason = generation.sequences[0].choice.stop_reason
    return reason if isinstance(reason, str) else None


def _stop_reason(generation: Generation) -> str:
    if generation.sequences[0].choice.finish_reason is FinishReason.LENGTH:
        return "max_tokens"
    return "end_turn" if _stop_sequence(generation) is None else "stop_sequence"


async def _events(generation: Generation, request_id: str) -> AsyncIterator[bytes]:
    yield event("message_start", {"message": _message(generation, request_id, finished=False)})
    yield event("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
    async for text in text_pieces(generation):
        yield event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})
    yield event("content_block_stop", {"index": 0})
    last = _message(generation, request_id, finished=True)
    ended = {"stop_reason": last["stop_reason"], "stop_sequence": last["stop_sequence"]}
    yield event("message_delta", {"delta": ended, "usage": last["usage"]})
    yield event("message_stop", {})


def _fault(error: Exception) -> bytes:
    shown = describe(error)[1]
    kind = {"rate_limit_error": "overloaded_error", "server_error": "api_error"}.get(shown.type, shown.type)
    return event("error", {"error": {"type": kind, "message": shown.message}})

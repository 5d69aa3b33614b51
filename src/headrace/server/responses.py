"""POST /v1/responses: the stateless text subset of OpenAI's Responses API. Input goes the way of a chat, and comes back
as one response or as its events; nothing is stored, so no response can go on from another.
"""

from __future__ import annotations

import time
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
from headrace.server.protocol import ChatBody
from headrace.server.sse import EventStream, whole_answer

_COPIED = ("model", "temperature", "top_p", "stream", "service_tier", "priority", "seed")
_STATEFUL = ("previous_response_id", "conversation", "background", "prompt")
_ROLES = ("user", "assistant", "system", "developer")


class ResponsesBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = None
    include: list[str] | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    priority: int | str | None = None
    seed: int | None = None


async def create_response(request: Request) -> Response | ASGIApp:
    body, generation, request_id = await begin_as_chat(request, "resp", _as_chat)
    answer = ResponseAnswer(generation, request_id, body)
    if body.stream:
        timeout = generation.service.settings.stall_timeout
        return EventStream(generation, answer.events(), timeout, done=b"", fault=answer.fault)
    return await whole_answer(request, generation, answer.whole)


def _as_chat(fields: dict[str, Any]) -> dict[str, Any]:
    for name in _STATEFUL:
        if fields.get(name) not in (None, False):
            raise RequestError(
                f"{name} is not supported: nothing is kept between requests, send the whole conversation as input",
                param=name,
                code="unsupported_parameter",
            )
    body = parse({k: v for k, v in fields.items() if k not in _STATEFUL}, ResponsesBody)
    if body.truncation not in (None, "disabled"):
        raise RequestError('truncation may only be "disabled": shorten the input instead', param="truncation")
    if body.include:
        raise RequestError("include may only be empty: there is nothing to include", param="include")
    if any(value not in (None, "none") for value in (body.reasoning or {}).values()):
        raise RequestError("reasoning may only have null or none for its values here", param="reasoning")
    chat = {name: getattr(body, name, None) for name in _COPIED}
    chat["max_completion_tokens"] = body.max_output_tokens
    chat["response_format"] = _format(body.text)
    chat["messages"] = _messages(body)
    return chat


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if not body.input:
        raise RequestError("input must be a text or a list of at least one message", param="input")
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for i, item in enumerate(body.input):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind != "message" or item.get("role") not in _ROLES:
            raise RequestError(
                f"input[{i}] must be a message with one of the roles {', '.join(_ROLES)}: this route takes text only",
                param=f"input[{i}]",
            )
        content = joined_text(item.get("content"), f"input[{i}].content", ("input_text", "output_text"))
        messages.append({"role": item["role"], "content": content})
    return messages


def _format(text: dict[str, Any] | None) -> dict[str, Any] | None:
    """text.format as a chat's response_format."""
    for name in text or ():
        if name != "format":
            raise RequestError(f"text.{name[:64]} is not supported: only text.format", param="text")
    form = (text or {}).get("format")
    if not isinstance(form, dict | None):
        raise RequestError("text.format must be an object with a type", param="text")
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


class ResponseAnswer:
    """Writes one generation as a response. Events are numbered."""

    def __init__(self, generation: Generation, request_id: str, body: ChatBody) -> None:
        self._generation = generation
        self._id = request_id
        self._item_id = request_id.replace("resp", "msg", 1)
        self._body = body
        self._created = int(time.time())
        self._number = -1

    async def whole(self) -> bytes:
        await self._generation.run()
        return msgspec.json.encode(self._response(self._status()))

    async def events(self) -> AsyncIterator[bytes]:
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))
        yield self._event("response.output_item.added", output_index=0, item=self._item("in_progress"))
        yield self._event("response.content_part.added", **place, part=self._part(""))
        async for text in text_pieces(self._generation):
            yield self._event("response.output_text.delta", **place, delta=text, logprobs=[])
        text, status = self._text, self._status()
        yield self._event("response.output_text.done", **place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **place, part=self._part(text))
        yield self._event("response.output_item.done", output_index=0, item=self._item(status))
        yield self._event(f"response.{status}", response=self._response(status))

    def fault(self, error: Exception) -> bytes:
        shown = describe(error)[1]
        return self._event("error", code=shown.code, message=shown.message, param=shown.param)

    @property
    def _text(self) -> str:
        return self._generation.sequences[0].choice.text

    def _status(self) -> str:
        cut = self._generation.sequences[0].choice.finish_reason is FinishReason.LENGTH
        return "incomplete" if cut else "completed"

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event(kind, {"sequence_number": self._number, **fields})

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part(self._text)]
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, status: str) -> dict[str, Any]:
        usage, ended = self._generation.usage(), status != "in_progress"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._generation.service.settings.model_name,
            "output": [self._item(status)] if ended else [],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "max_output_tokens": self._body.max_completion_tokens,
            "metadata": {},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": self._body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": self._body.top_p,
            "truncation": "disabled",
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.total_tokens,
            }
            if ended
            else None,
        }

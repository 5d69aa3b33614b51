"""POST /v1/responses: the stateless part of OpenAI's Responses API. Input goes the way of a chat, and comes back as one
response or as its events; nothing is stored, so no response can go on from another.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.core.errors import RequestError
from headrace.server.dialects import begin_as_chat
from headrace.server.fields import parse
from headrace.server.protocol import ResponsesBody
from headrace.server.responses_answer import ResponseAnswer
from headrace.server.responses_input import chat_choice, chat_tools, conversation
from headrace.server.service import Service
from headrace.server.sse import EventStream, whole_answer

_COPIED = ("model", "temperature", "top_p", "stream", "service_tier", "priority", "seed", "parallel_tool_calls")
_STATEFUL = ("previous_response_id", "conversation", "background", "prompt")
_INCLUDED = ("reasoning.encrypted_content",)
"""Reasoning comes in plain text, so there is nothing encrypted to include."""
_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "function.name": "name",
    "function.description": "description",
    "function.parameters": "parameters",
    "function.strict": "strict",
}


async def create_response(request: Request) -> Response | ASGIApp:
    answer = await begin_as_chat(request, "resp", _as_chat, _NAMES)
    writer, generation = ResponseAnswer(answer), answer.generation
    if answer.body.stream:
        timeout = generation.service.settings.stall_timeout
        return EventStream(generation, writer.events(), timeout, done=b"", fault=writer.fault)
    return await whole_answer(request, generation, writer.whole)


def _as_chat(service: Service, fields: dict[str, Any]) -> tuple[dict[str, Any], ResponsesBody]:
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
    for name in body.include or ():
        if name not in _INCLUDED:
            raise RequestError(f"include may only have {', '.join(_INCLUDED)}, got {name[:64]!r}", param="include")
    reasons = service.settings.reasoning_parser is not None
    if not reasons and any(value not in (None, "none") for value in (body.reasoning or {}).values()):
        raise RequestError(
            "reasoning may only have null or none for its values: this server does not tell reasoning from answers "
            "(--reasoning-parser)",
            param="reasoning",
        )
    chat = {name: getattr(body, name) for name in _COPIED}
    chat["max_completion_tokens"] = body.max_output_tokens
    chat["response_format"] = _format(body.text)
    chat["messages"] = conversation(body.input, body.instructions)
    chat["tools"], chat["tool_choice"] = chat_tools(body.tools), chat_choice(body.tool_choice)
    return chat, body


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

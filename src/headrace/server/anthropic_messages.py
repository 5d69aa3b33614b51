"""POST /v1/messages and /v1/messages/count_tokens: a conversation in Anthropic's shape, for clients that speak it. It
goes the way of a chat, and comes back as one message or as Anthropic's events.
"""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.core.errors import RequestError, shown
from headrace.server.anthropic_answer import MessageAnswer, fault
from headrace.server.anthropic_input import chat_choice, chat_tools, conversation
from headrace.server.chat_prompt import encode_chat
from headrace.server.dialects import begin_as_chat, renaming
from headrace.server.fields import parse
from headrace.server.protocol import ChatBody, MessagesBody
from headrace.server.service import Service, service_of
from headrace.server.sse import EventStream, whole_answer
from headrace.server.tools.choice import tool_choice

_COPIED = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "priority", "seed")
_NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "function.name": "name",
    "function.description": "description",
    "function.parameters": "input_schema",
    "function.strict": "strict",
}


async def create_message(request: Request) -> Response | ASGIApp:
    answer = await begin_as_chat(request, "msg", _as_chat, _NAMES)
    writer, generation = MessageAnswer(answer), answer.generation
    if answer.body.stream:
        timeout = generation.service.settings.stall_timeout
        return EventStream(generation, writer.events(), timeout, done=b"", fault=fault)
    return await whole_answer(request, generation, writer.whole)


async def count_tokens(request: Request) -> Response:
    """How many tokens the same body's prompt would have."""
    service = service_of(request)

    def count(fields: dict[str, Any]) -> bytes:
        chat, _ = _as_chat(service, {"max_tokens": 1, **fields})
        with renaming(_NAMES):
            body = parse(chat, ChatBody)
            service.check_model(body.model)
            tools = tool_choice(body, service.settings.tool_format)
            ids = encode_chat(service, body, None if tools is None else tools.shown)
        return msgspec.json.encode({"input_tokens": len(ids)})

    return Response(await service.bodies.prepare(request, count), media_type="application/json")


def _as_chat(service: Service, fields: dict[str, Any]) -> tuple[dict[str, Any], MessagesBody]:
    if fields.get("thread") is not None:
        # By this code Anthropic's libraries know that they have to send the whole conversation each time.
        raise RequestError(
            "thread is not supported: nothing is kept between requests, send the whole conversation",
            param="thread",
            code="thread_unsupported_request",
        )
    body = parse({name: value for name, value in fields.items() if name != "thread"}, MessagesBody)
    if body.max_tokens is None or body.max_tokens < 1:
        raise RequestError("max_tokens is required, and must be at least 1", param="max_tokens")
    _check_thinking(body.thinking, reasons=service.settings.reasoning_parser is not None)
    if body.service_tier not in (None, "auto", "standard_only"):
        raise RequestError("service_tier must be auto or standard_only", param="service_tier")
    messages = conversation(body.messages, body.system)
    # A last message of the assistant's own is the answer's beginning.
    continued = messages[-1]["role"] == "assistant"
    chat = {name: getattr(body, name) for name in _COPIED}
    # Clients of this shape ask for as much as Anthropic's models could write, whatever the model.
    chat["max_tokens"] = min(body.max_tokens, service.limits.max_model_len)
    chat |= {"messages": messages, "stop": body.stop_sequences, "continue_final_message": continued}
    chat |= {"response_format": _format(body.output_config), "tools": chat_tools(body.tools)}
    return chat | chat_choice(body.tool_choice), body


def _check_thinking(thinking: dict[str, Any] | None, *, reasons: bool) -> None:
    kinds = ("enabled", "adaptive", "disabled") if reasons else ("disabled",)
    if thinking is not None and thinking.get("type") not in kinds:
        why = "" if reasons else ": this server does not tell thinking from answers (--reasoning-parser)"
        raise RequestError(
            f"thinking.type must be {' or '.join(kinds)} here, got {shown(thinking.get('type'))}{why}", param="thinking"
        )


def _format(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """output_config.format as a chat's response_format."""
    for name in config or ():
        if name != "format":
            raise RequestError(f"output_config.{name[:64]} is not supported: only format", param="output_config")
    form = (config or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, dict) or set(form) != {"type", "schema"} or form["type"] != "json_schema":
        raise RequestError(
            f'output_config.format must be {{"type": "json_schema", "schema": SCHEMA}}, got {shown(form)}',
            param="output_config",
        )
    return {"type": "json_schema", "json_schema": {"schema": form["schema"], "strict": True}}

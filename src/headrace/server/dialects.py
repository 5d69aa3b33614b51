"""What the routes for other APIs' shapes have in common: their body becomes a chat's, goes the chat's way, and its text
comes back in pieces. Text only, one choice, nothing kept between requests.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request

from headrace.core.errors import RequestError
from headrace.server.caller import set_caller
from headrace.server.chat import prepare_chat
from headrace.server.deadline import set_deadline
from headrace.server.generation import Generation
from headrace.server.protocol import ChatBody
from headrace.server.service import service_of
from headrace.server.structured import check_understood

_encode = msgspec.json.Encoder().encode


async def begin(
    request: Request, prefix: str, translate: Callable[[dict[str, Any]], dict[str, Any]]
) -> tuple[ChatBody, Generation, str]:
    """A chat's body, its generation, not yet begun, and the answer's id. translate: a chat's fields for a body's.
    Raises as a chat does."""
    service, arrival = service_of(request), time.monotonic()
    service.check_taking_requests()
    request_id = service.new_id(prefix)
    body, sequences, *_ = await service.bodies.prepare(
        request, lambda fields: prepare_chat(service, translate(fields), request_id)
    )
    await check_understood(service, sequences[0].request.params.structured_outputs, body)
    set_deadline(request, body.deadline_ms, sequences, arrival)
    set_caller(request, body, sequences)
    generation = Generation(service, sequences, arrival)
    request.state.generation, request.state.answer_id = generation, request_id
    return body, generation, request_id


async def text_pieces(generation: Generation) -> AsyncIterator[str]:
    """New text of the one choice, as it comes."""
    async for _, new in generation.deltas():
        if new.text:
            yield new.text


def event(kind: str, fields: dict[str, Any]) -> bytes:
    """A server-sent event with a name, which its data repeats."""
    return b"event: " + kind.encode() + b"\ndata: " + _encode({"type": kind, **fields}) + b"\n\n"


def joined_text(content: Any, where: str, kinds: tuple[str, ...]) -> str:
    """A string, or the texts of parts of these kinds, joined as a chat's are. Raises RequestError naming the part."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise RequestError(f"{where} must be a string or a list of text parts", param=where)
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
            raise RequestError(
                f"{where}[{i}] must be a part of type {' or '.join(kinds)} with text: this route takes text only",
                param=f"{where}[{i}]",
                code="unsupported_content",
            )
        texts.append(part["text"])
    return "\n".join(texts)

"""What the routes for other APIs' shapes have in common: their body becomes a chat's, goes the chat's way, and its text
comes back in pieces. Text only, one choice, nothing kept between requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request

from headrace.core.errors import RequestError
from headrace.server.beginning import begin
from headrace.server.chat import prepare_chat
from headrace.server.generation import Generation
from headrace.server.protocol import ChatBody

_encode = msgspec.json.Encoder().encode


async def begin_as_chat(
    request: Request, prefix: str, translate: Callable[[dict[str, Any]], dict[str, Any]]
) -> tuple[ChatBody, Generation, str]:
    """A chat's body, its generation, not yet begun, and the answer's id. translate: a chat's fields for a body's.
    Raises as a chat does."""
    generation, request_id, body, _ = await begin(
        request, prefix, lambda service, fields, name: prepare_chat(service, translate(fields), name)
    )
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

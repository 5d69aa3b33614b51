"""What the routes for other APIs' shapes have in common: a body becomes a chat's, goes the chat's way, and its answer
comes back in blocks. One choice, nothing kept between requests; errors name the fields of the body that was sent.
"""

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request

from headrace.core.errors import RequestError
from headrace.core.request import FinishReason
from headrace.server.answer_blocks import AnswerBlocks, Change
from headrace.server.beginning import begin
from headrace.server.chat import prepare_chat
from headrace.server.generation import Generation, Sequence
from headrace.server.protocol import ChatBody
from headrace.server.service import Service

_encode = msgspec.json.Encoder().encode
Own = TypeVar("Own")
Translate = Callable[[Service, dict[str, Any]], tuple[dict[str, Any], Own]]
"""A chat's fields for a body's, and the body as it was read."""


@dataclass(slots=True)
class DialectAnswer(Generic[Own]):
    """What a route writes its answer from. The generation is not yet begun."""

    id: str
    body: Own
    generation: Generation
    blocks: AnswerBlocks

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.generation.sequences[0].choice.finish_reason

    async def changes(self) -> AsyncIterator[Change]:
        """To the end of the answer."""
        async for _, new in self.generation.deltas():
            for change in self.blocks.feed(new.text, len(new.token_ids), last=new.finish_reason is not None):
                yield change

    async def run(self) -> None:
        async for _ in self.changes():
            pass


async def begin_as_chat(
    request: Request, prefix: str, translate: Translate[Own], names: Mapping[str, str]
) -> DialectAnswer[Own]:
    """names: what a chat's fields are called here. Raises as a chat does."""
    own: list[Own] = []

    def prepare(service: Service, fields: dict[str, Any], name: str) -> tuple[ChatBody, list[Sequence], AnswerBlocks]:
        chat, body = translate(service, fields)
        own.append(body)
        with renaming(names):
            given, sequences, reading = prepare_chat(service, chat, name)
        return given, sequences, AnswerBlocks(reading.new_reader())

    with renaming({name: names[name] for name in names if name.startswith("response_format")}):
        generation, request_id, _, blocks = await begin(request, prefix, prepare)
    return DialectAnswer(request_id, own[0], generation, blocks)


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about a chat's fields speak of them by these names."""
    try:
        yield
    except RequestError as error:
        pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names, key=len, reverse=True)))
        error.message = pattern.sub(lambda found: names[found[0]], error.message)
        error.param = None if error.param is None else pattern.sub(lambda found: names[found[0]], error.param)
        raise


def event(kind: str, fields: dict[str, Any]) -> bytes:
    """A server-sent event with a name, which its data repeats."""
    return b"event: " + kind.encode() + b"\ndata: " + _encode({"type": kind, **fields}) + b"\n\n"


def joined_text(content: Any, where: str, kinds: tuple[str, ...]) -> str:
    """A string, or the texts of parts of these kinds, joined as a chat's are. Raises RequestError naming the part."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise RequestError(f"{where} must be a string or a list of text parts", param=where)
    return "\n".join(part_text(part, f"{where}[{i}]", kinds) for i, part in enumerate(content))


def part_text(part: Any, where: str, kinds: tuple[str, ...]) -> str:
    if not isinstance(part, dict) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
        raise RequestError(
            f"{where} must be a part of type {' or '.join(kinds)} with text: this model reads text only",
            param=where,
            code="unsupported_content",
        )
    return str(part["text"])


def text_field(item: dict[str, Any], name: str, where: str) -> str:
    """A field that must be there and be a string."""
    if not isinstance(item.get(name), str):
        raise RequestError(f"{where}.{name} must be a string", param=f"{where}.{name}")
    return str(item[name])


def check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """RequestError for a key that nothing would read."""
    for name in given:
        if name not in known:
            raise RequestError(f"{where} has an unknown field {name[:64]!r}; known: {', '.join(known)}", param=where)

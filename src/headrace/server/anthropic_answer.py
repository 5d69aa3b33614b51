"""An answer in Anthropic's shape: one message, or its events. Thinking, text and uses of tools are content blocks, in
the order in which the model wrote them.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from headrace.core.request import FinishReason
from headrace.server.answer_blocks import Block, Change, Kind, What
from headrace.server.dialects import DialectAnswer, event
from headrace.server.errors import anthropic_error
from headrace.server.protocol import MessagesBody

_DELTAS = {
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.TEXT: ("text_delta", "text"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}


class MessageAnswer:
    """Writes one answer as a message."""

    def __init__(self, answer: DialectAnswer[MessagesBody]) -> None:
        self._answer = answer

    async def whole(self) -> bytes:
        await self._answer.run()
        return msgspec.json.encode(self._message(finished=True))

    async def events(self) -> AsyncIterator[bytes]:
        yield event("message_start", {"message": self._message(finished=False)})
        async for change in self._answer.changes():
            yield _written(change)
        last = self._message(finished=True)
        ended = {"stop_reason": last["stop_reason"], "stop_sequence": last["stop_sequence"]}
        yield event("message_delta", {"delta": ended, "usage": last["usage"]})
        yield event("message_stop", {})

    def _message(self, *, finished: bool) -> dict[str, Any]:
        generation = self._answer.generation
        usage = generation.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return {
            "id": self._answer.id,
            "type": "message",
            "role": "assistant",
            "model": generation.service.settings.model_name,
            "content": [_content(block, block.text) for block in self._answer.blocks.blocks] if finished else [],
            "stop_reason": self._stop_reason() if finished else None,
            "stop_sequence": self._stop_sequence() if finished else None,
            "usage": {
                "input_tokens": usage.prompt_tokens - cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": cached,
                "output_tokens": usage.completion_tokens,
            },
        }

    def _stop_sequence(self) -> str | None:
        reason = self._answer.generation.sequences[0].choice.stop_reason
        return reason if isinstance(reason, str) else None

    def _stop_reason(self) -> str:
        if self._answer.finish_reason is FinishReason.LENGTH:
            return "max_tokens"
        if self._stop_sequence() is not None:
            return "stop_sequence"
        return "tool_use" if self._answer.blocks.called else "end_turn"


def fault(error: Exception) -> bytes:
    return event("error", {"error": anthropic_error(error).error})


def _written(change: Change) -> bytes:
    index = {"index": change.block.index}
    if change.what is What.BEGUN:
        return event("content_block_start", {**index, "content_block": _content(change.block, "")})
    if change.what is What.ENDED:
        return event("content_block_stop", index)
    kind, field = _DELTAS[change.block.kind]
    return event("content_block_delta", {**index, "delta": {"type": kind, field: change.text}})


def _content(block: Block, text: str) -> dict[str, Any]:
    if block.kind is Kind.CALL:
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(text)}
    if block.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _input(arguments: str) -> dict[str, Any]:
    """What a tool is called with; nothing where the answer was cut in it, or what the model wrote is no object."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

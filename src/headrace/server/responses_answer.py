"""An answer in the shape of OpenAI's Responses: whole, or as its numbered events. Reasoning, messages and calls of
functions are items, in the order in which the model wrote them.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from headrace.core.request import FinishReason
from headrace.server.answer_blocks import Block, Change, Kind, What
from headrace.server.dialects import DialectAnswer, event
from headrace.server.errors import describe
from headrace.server.protocol import ResponsesBody

_PREFIXES = {Kind.REASONING: "rs", Kind.TEXT: "msg", Kind.CALL: "fc"}
_STREAMED = {Kind.REASONING: "reasoning_text", Kind.TEXT: "output_text", Kind.CALL: "function_call_arguments"}


class ResponseAnswer:
    """Writes one answer as a response."""

    def __init__(self, answer: DialectAnswer[ResponsesBody]) -> None:
        self._answer = answer
        self._stem = answer.id.removeprefix("resp-")
        self._created = int(time.time())
        self._number = -1

    async def whole(self) -> bytes:
        await self._answer.run()
        return msgspec.json.encode(self._response(self._status()))

    async def events(self) -> AsyncIterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))
        async for change in self._answer.changes():
            for written in self._written(change):
                yield written
        status = self._status()
        yield self._event(f"response.{status}", response=self._response(status))

    def fault(self, error: Exception) -> bytes:
        shown = describe(error)[1]
        return self._event("error", code=shown.code, message=shown.message, param=shown.param)

    def _written(self, change: Change) -> list[bytes]:
        """The events that tell of a change."""
        block = change.block
        output, place = {"output_index": block.index}, {"item_id": self._item_id(block), "output_index": block.index}
        name = f"response.{_STREAMED[block.kind]}"
        if block.kind is not Kind.CALL:
            place["content_index"] = 0
        logprobs: dict[str, Any] = {"logprobs": []} if block.kind is Kind.TEXT else {}
        if change.what is What.MORE:
            return [self._event(f"{name}.delta", **place, delta=change.text, **logprobs)]
        part = None if block.kind is Kind.CALL else _part(block.kind, block.text)
        if change.what is What.BEGUN:
            events = [self._event("response.output_item.added", **output, item=self._item(block, "in_progress"))]
            return events if part is None else [*events, self._event("response.content_part.added", **place, part=part)]
        last = {"text": block.text} if part is not None else {"name": block.name, "arguments": block.text}
        events = [self._event(f"{name}.done", **place, **last, **logprobs)]
        if part is not None:
            events.append(self._event("response.content_part.done", **place, part=part))
        return [*events, self._event("response.output_item.done", **output, item=self._item(block, self._ended(block)))]

    def _status(self) -> str:
        return "incomplete" if self._answer.finish_reason is FinishReason.LENGTH else "completed"

    def _ended(self, block: Block) -> str:
        """The status of an item that has ended: what was cut is the last."""
        return self._status() if block is self._answer.blocks.blocks[-1] else "completed"

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event(kind, {"sequence_number": self._number, **fields})

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}-{self._stem}" + (f"-{block.index}" if block.index else "")

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id(block), "status": status}
        if block.kind is Kind.CALL:
            return item | {
                "type": "function_call", "call_id": block.id, "name": block.name, "arguments": block.text
            }  # fmt: skip
        content = [] if status == "in_progress" else [_part(block.kind, block.text)]
        if block.kind is Kind.REASONING:
            return item | {"type": "reasoning", "summary": [], "content": content}
        return item | {"type": "message", "role": "assistant", "content": content}

    def _response(self, status: str) -> dict[str, Any]:
        answer, body, ended = self._answer, self._answer.body, status != "in_progress"
        params = answer.generation.sequences[0].request.params
        return {
            "id": answer.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": answer.generation.service.settings.model_name,
            "output": [self._item(block, self._ended(block)) for block in answer.blocks.blocks] if ended else [],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": body.reasoning or {"effort": None, "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": body.tools or [],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._answer.generation.usage()
        guessed = usage.completion_tokens_details
        predicted = {} if guessed is msgspec.UNSET else msgspec.to_builtins(guessed)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._answer.blocks.reasoning_tokens, **predicted},
            "total_tokens": usage.total_tokens,
        }


def _part(kind: Kind, text: str) -> dict[str, Any]:
    if kind is Kind.REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

"""What was read of an answer, in the shapes of OpenAI's chat: a whole message, or a stream's delta."""

import msgspec

from headrace.server.answer_reader import Read
from headrace.server.protocol import AssistantMessage, CalledFunction, ChatDelta, ToolCall, ToolCallDelta


def message_of(read: Read, echo: str) -> AssistantMessage:
    """content is null where there are calls and no text."""
    content = echo + read.content
    reasoning = read.reasoning or msgspec.UNSET
    calls = [ToolCall(call.id or "", CalledFunction(call.arguments, call.name or "")) for call in read.calls]
    return AssistantMessage(
        "assistant",
        content or (None if calls else ""),
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=calls or msgspec.UNSET,
    )


def delta_of(read: Read) -> ChatDelta | None:
    """None if nothing is certain yet."""
    calls = [
        ToolCallDelta(call.index, CalledFunction(call.arguments))
        if call.name is None
        else ToolCallDelta(call.index, CalledFunction(call.arguments, call.name), call.id or "", "function")
        for call in read.calls
    ]
    if not (read.content or read.reasoning or calls):
        return None
    reasoning = read.reasoning or None
    return ChatDelta(
        content=read.content or None, reasoning=reasoning, reasoning_content=reasoning, tool_calls=calls or None
    )

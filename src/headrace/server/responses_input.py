"""The input of /v1/responses as a chat's messages and tools: messages, calls of functions with what they returned, and
the reasoning of earlier answers, whose items come one by one where a chat has them in one message.
"""

from typing import Any

from headrace.core.errors import RequestError, shown
from headrace.server.dialects import check_keys, joined_text, text_field

_ROLES = ("user", "assistant", "system", "developer")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_TEXTS = ("input_text", "output_text")
_TOOL_FIELDS = ("type", "name", "description", "parameters", "strict")


def conversation(given: str | list[Any] | None, instructions: str | None) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if not given:
        raise RequestError("input must be a text or a list of at least one item", param="input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for i, item in enumerate(given):
        _add(item, f"input[{i}]", messages)
    return messages


def _add(item: Any, where: str, messages: list[dict[str, Any]]) -> None:
    """One item, in a message of its own or as a part of the assistant's last."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind not in _ITEMS:
        raise RequestError(f"{where} must be an item of one of the types {', '.join(_ITEMS)}", param=where)
    if kind == "message":
        if item.get("role") not in _ROLES:
            raise RequestError(
                f"{where}.role must be one of {', '.join(_ROLES)}, got {shown(item.get('role'))}", param=where
            )
        content = joined_text(item.get("content"), f"{where}.content", _TEXTS)
        begun = messages[-1] if messages and item["role"] == "assistant" else {}
        if begun.get("content", "") is None and "tool_calls" not in begun:
            begun["content"] = content
        else:
            messages.append({"role": item["role"], "content": content})
    elif kind == "function_call_output":
        returned = item.get("output")
        content = returned if isinstance(returned, str) else joined_text(returned, f"{where}.output", _TEXTS)
        messages.append({"role": "tool", "tool_call_id": text_field(item, "call_id", where), "content": content})
    elif kind == "reasoning":
        _own_message(messages, fresh=True)["reasoning"] = _reasoning(item, where)
    else:
        function = {name: text_field(item, name, where) for name in ("name", "arguments")}
        call = {"id": text_field(item, "call_id", where), "type": "function", "function": function}
        _own_message(messages).setdefault("tool_calls", []).append(call)


def _own_message(messages: list[dict[str, Any]], *, fresh: bool = False) -> dict[str, Any]:
    """The assistant's message that goes on, or a new one."""
    if fresh or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _reasoning(item: dict[str, Any], where: str) -> str:
    if not item.get("content") and not item.get("summary"):
        raise RequestError(
            f"{where} must have content or summary: reasoning that is encrypted cannot be read here", param=where
        )
    name, kind = ("content", "reasoning_text") if item.get("content") else ("summary", "summary_text")
    return joined_text(item[name], f"{where}.{name}", (kind,))


def chat_tools(tools: list[Any] | None) -> list[dict[str, Any]] | None:
    """Functions as a chat has them."""
    if tools is None:
        return None
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise RequestError(
            f'{where} must be {{"type": "function", "name": NAME, ...}}: nothing else is run here, got {shown(tool)}',
            param=where,
        )
    check_keys(tool, _TOOL_FIELDS, where)
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def chat_choice(choice: Any) -> Any:
    """tool_choice as a chat has it."""
    if isinstance(choice, dict):
        if choice.get("type") != "function" or not isinstance(choice.get("name"), str) or len(choice) != 2:
            raise RequestError(
                f'tool_choice must be "none", "auto", "required" or {{"type": "function", "name": NAME}}, got '
                f"{shown(choice)}",
                param="tool_choice",
            )
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice

"""The conversation and the tools of /v1/messages as a chat has them: a message of Anthropic's may hold text, reasoning,
calls and what calls returned side by side, where a chat has messages of different roles.
"""

from typing import Any

from headrace.core.errors import RequestError, shown
from headrace.server.dialects import check_keys, joined_text, part_text, text_field

_TOOL_FIELDS = ("name", "description", "input_schema", "strict", "type", "cache_control")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_CHOICE_FIELDS = ("type", "name", "disable_parallel_tool_use")


def conversation(messages: list[Any] | None, system: str | list[Any] | None) -> list[dict[str, Any]]:
    chat: list[dict[str, Any]] = []
    if system is not None:
        chat.append({"role": "system", "content": joined_text(system, "system", ("text",))})
    if not messages:
        raise RequestError("messages must have at least one message", param="messages")
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise RequestError(f"{where}.role must be user or assistant", param=where)
        check_keys(message, ("role", "content"), where)
        content = message.get("content")
        if isinstance(content, str):
            chat.append({"role": message["role"], "content": content})
        elif not isinstance(content, list) or not content:
            raise RequestError(f"{where}.content must be a string or a list of blocks", param=f"{where}.content")
        elif message["role"] == "user":
            chat += _from_user(content, f"{where}.content")
        else:
            chat.append(_from_assistant(content, f"{where}.content"))
    return chat


def _from_user(blocks: list[Any], where: str) -> list[dict[str, Any]]:
    """What calls returned, then what the user says."""
    returned, texts = [], []
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        if not isinstance(block, dict) or block.get("type") != "tool_result":
            texts.append(part_text(block, at, ("text", "tool_result")))
            continue
        content = block.get("content")
        text = "" if content in (None, []) else joined_text(content, f"{at}.content", ("text",))
        call_id = text_field(block, "tool_use_id", at)
        returned.append({"role": "tool", "tool_call_id": call_id, "content": text})
    return [*returned, {"role": "user", "content": "\n".join(texts)}] if texts else returned


def _from_assistant(blocks: list[Any], where: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            thoughts.append(text_field(block, "thinking", at))
        elif kind == "tool_use":
            given = block.get("input")
            if not isinstance(given, dict):
                raise RequestError(f"{at}.input must be an object, got {shown(given)}", param=f"{at}.input")
            function = {"name": text_field(block, "name", at), "arguments": given}
            calls.append({"id": text_field(block, "id", at), "type": "function", "function": function})
        else:
            texts.append(part_text(block, at, ("text", "tool_use", "thinking")))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    return message | ({"tool_calls": calls} if calls else {}) | ({"reasoning": "\n".join(thoughts)} if thoughts else {})


def chat_tools(tools: list[Any] | None) -> list[dict[str, Any]] | None:
    """Tools as a chat has them."""
    return None if tools is None else [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom"):
        raise RequestError(
            f'{where} must be {{"name": NAME, "input_schema": SCHEMA, ...}}: no other tools are run here, got '
            f"{shown(tool)}",
            param=where,
        )
    check_keys(tool, _TOOL_FIELDS, where)
    if not isinstance(tool.get("input_schema"), dict):
        raise RequestError(
            f"{where}.input_schema must be a JSON Schema, an object, got {shown(tool.get('input_schema'))}",
            param=f"{where}.input_schema",
        )
    function = {name: tool.get(name) for name in ("name", "description", "strict")}
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}


def chat_choice(choice: dict[str, Any] | None) -> dict[str, Any]:
    """tool_choice as a chat's fields."""
    if choice is None:
        return {}
    kind, name, single = (choice.get(field) for field in _CHOICE_FIELDS)
    named = kind == "tool" and isinstance(name, str)
    if set(choice) - set(_CHOICE_FIELDS) or not (named or (kind in _CHOICES and name is None)):
        raise RequestError(
            'tool_choice must be {"type": "auto"}, "any" or "none" in its place, or {"type": "tool", "name": NAME}, '
            f"got {shown(choice)}",
            param="tool_choice",
        )
    if not isinstance(single, bool | None):
        raise RequestError(
            f"tool_choice.disable_parallel_tool_use must be true or false, got {shown(single)}", param="tool_choice"
        )
    chosen: Any = {"type": "function", "function": {"name": name}} if named else _CHOICES[str(kind)]
    return {"tool_choice": chosen, "parallel_tool_calls": None if single is None else not single}

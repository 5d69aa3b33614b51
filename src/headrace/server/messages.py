"""A conversation as the client sent it becomes what the chat template takes: roles checked, text parts joined by
line breaks, calls of tools and their results as templates expect them, everything that is not text refused by name.
"""

import json
from typing import Any

from headrace.core.errors import RequestError, did_you_mean, shown

ROLES = ("system", "developer", "user", "assistant", "tool")
_REASONING = ("reasoning", "reasoning_content")
_KNOWN: dict[str, tuple[str, ...]] = {
    "assistant": ("role", "content", "name", "refusal", "annotations", "audio", "tool_calls", *_REASONING),
    "tool": ("role", "content", "name", "tool_call_id"),
}
_PLAIN = ("role", "content", "name")


def check_messages(messages: list[Any] | None, *, most: int) -> list[dict[str, Any]]:
    """Messages for the template: role, content (a string) and name where given. `developer` is the newer name of
    `system`. most: how many the context can hold, a token each. Raises RequestError naming the message and field."""
    if not messages:
        raise RequestError("messages must have at least one message", param="messages")
    if len(messages) > most:
        raise RequestError(
            f"messages has {len(messages)} messages, but this model's context is {most} tokens: send fewer",
            param="messages",
            code="context_length_exceeded",
        )
    return [check_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def check_message(message: Any, where: str) -> dict[str, Any]:
    """One message for the template. where: what errors call it."""
    if not isinstance(message, dict):
        raise _wrong(where, "must be an object with role and content", message)
    fields = {name: value for name, value in message.items() if value is not None}
    role = fields.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}", role)
    known = _KNOWN.get(role, _PLAIN)
    for name, value in fields.items():
        if name not in known and value != []:
            raise _unknown(where, name, known)
    checked: dict[str, Any] = {"role": "system" if role == "developer" else role}
    if calls := fields.get("tool_calls"):
        checked["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    bare = role == "assistant" and fields.get("content") is None and bool(calls)
    checked["content"] = "" if bare else _text(fields.get("content"), f"{where}.content")
    for name in ("name", "tool_call_id"):
        if name in known and (name in fields or name == "tool_call_id"):
            if not isinstance(fields.get(name), str):
                raise _wrong(f"{where}.{name}", "must be a string", fields.get(name))
            checked[name] = fields[name]
    for name in _REASONING if role == "assistant" else ():
        if name in fields:
            checked["reasoning_content"] = _text(fields[name], f"{where}.{name}")
    return checked


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Calls of tools as templates expect them: arguments are an object, not its text."""
    if not isinstance(calls, list):
        raise _wrong(where, "must be a list of calls", calls)
    checked = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or call.get("type") not in (None, "function")
            or not set(call) <= {"id", "type", "function", "index"}
            or not set(function) <= {"name", "arguments"}
        ):
            raise _wrong(f"{where}[{i}]", 'must be {"id", "type": "function", "function": {"name", "arguments"}}', call)
        call_id = "" if call.get("id") is None else call["id"]
        if not isinstance(call_id, str):
            raise _wrong(f"{where}[{i}].id", "must be a string", call_id)
        arguments = _arguments(function.get("arguments"), f"{where}[{i}].function.arguments")
        called = {"name": function["name"], "arguments": arguments}
        checked.append({"id": call_id, "type": "function", "function": called})
    return checked


def _arguments(given: Any, where: str) -> dict[str, Any]:
    value = {} if given is None else given
    if isinstance(given, str):
        try:
            value = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise _wrong(where, "must be a JSON object, as text", given)
    return value


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _wrong(where, "must be a string or a list of text parts", content)
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(kind, str) and kind != "text":
        raise RequestError(
            f"{where}: parts of type {kind[:64]!r} are not supported, this model reads text only",
            param=where,
            code="unsupported_content",
        )
    raise _wrong(where, 'must be {"type": "text", "text": STRING}', part)


def _unknown(where: str, name: str, known: tuple[str, ...]) -> RequestError:
    hint = did_you_mean(name, known, f"this message may have {', '.join(known)}")
    return RequestError(f"{where}: field {name[:64]!r} is not supported; {hint}", param=f"{where}.{name[:64]}")


def _wrong(where: str, must: str, value: Any) -> RequestError:
    given = "null" if value is None else shown(value)
    return RequestError(f"{where} {must}, got {given}", param=where)

"""A conversation as the client sent it becomes what the chat template takes: roles checked, text parts joined by
line breaks, everything that is not text refused by name.
"""

from __future__ import annotations

import difflib
from typing import Any

from headrace.core.errors import RequestError, shown

ROLES = ("system", "developer", "user", "assistant")
_NOT_YET = ("tool", "function")
_KNOWN = ("role", "content", "name", "refusal", "annotations")


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
        if role in _NOT_YET:
            raise RequestError(
                f"{where}.role: {role!r} needs tools, which are not available yet", param=f"{where}.role"
            )
        raise _wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}", role)
    for name, value in fields.items():
        if name in ("role", "content") or (name in _KNOWN and role == "assistant"):
            continue
        if name == "name" and isinstance(value, str):
            continue
        if value != []:
            raise _unknown(where, name)
    text = _text(fields.get("content"), f"{where}.content")
    checked = {"role": "system" if role == "developer" else role, "content": text}
    if isinstance(fields.get("name"), str):
        checked["name"] = fields["name"]
    return checked


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


def _unknown(where: str, name: str) -> RequestError:
    near = difflib.get_close_matches(name[:64], _KNOWN, n=1)
    hint = f"did you mean {near[0]}?" if near else "a message has role, content and name"
    return RequestError(f"{where}: field {name[:64]!r} is not supported; {hint}", param=f"{where}.{name[:64]}")


def _wrong(where: str, must: str, value: Any) -> RequestError:
    given = "null" if value is None else shown(value)
    return RequestError(f"{where} {must}, got {given}", param=where)

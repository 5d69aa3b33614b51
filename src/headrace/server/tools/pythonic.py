"""Calls as a Python list, as Llama 3.2 and 4 write them: [get_weather(city="Oslo", days=3), get_time()]. A call is
handed out when its bracket closes; an answer that is no such list is text.
"""

import ast
import json
import re
from typing import Any

from headrace.server.tools.parts import NewId, Parts

_SPACE = " \t\r\n"
_NAME = re.compile(r"[A-Za-z_][\w.-]*\Z")
_WORDS = {"true": True, "false": False, "null": None}
_LONGEST_CALL = 65_536


class PythonicParser:
    """A ToolParser. Calls have names and arguments by keyword only, and values are literals."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._count = 0
        self._state = "open"
        self._raw = ""
        """What was read since the last call; all of it while there is none."""
        self._call = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> Parts:
        parts = Parts()
        for at, character in enumerate(text):
            if self._state == "text":
                parts.content += text[at:]
                break
            self._raw += character
            self._feed_character(character, parts)
        return parts

    def finish(self) -> Parts:
        if self._state == "text" or (self._count and not self._call):
            return Parts()
        return Parts(self._raw)

    def _feed_character(self, character: str, parts: Parts) -> None:
        if self._quote:
            self._call += character
            if not self._escaped and character == self._quote:
                self._quote = ""
            self._escaped = not self._escaped and character == "\\"
        elif self._depth:
            self._call += character
            if character in "\"'":
                self._quote = character
            self._depth += (character in "([{") - (character in ")]}")
            if self._depth == 0:
                self._hand_out(parts)
        elif self._state == "open":
            if character == "[":
                self._state = "between"
            elif character not in _SPACE:
                self._turn_to_text(parts)
        elif self._state == "between" and character in _SPACE + ",":
            self._raw = "" if self._count else self._raw
        elif self._state == "between" and character == "]" and self._count:
            self._state, self._raw = "text", ""
        else:
            self._state = "name"
            self._call += character
            self._depth = int(character == "(")
            if not _NAME.match(self._call.removesuffix("(")):
                self._turn_to_text(parts)
        if len(self._call) > _LONGEST_CALL:
            self._turn_to_text(parts)

    def _hand_out(self, parts: Parts) -> None:
        name, _, arguments = self._call.partition("(")
        values = _keywords(arguments.removesuffix(")"))
        if values is None:
            self._turn_to_text(parts)
            return
        parts.begin(self._count, self._new_id(), name)
        parts.argue(self._count, json.dumps(values, ensure_ascii=False))
        self._count += 1
        self._state, self._call, self._raw = "between", "", ""

    def _turn_to_text(self, parts: Parts) -> None:
        parts.content += self._raw
        self._state, self._raw, self._call, self._quote, self._depth = "text", "", "", "", 0


def _keywords(text: str) -> dict[str, Any] | None:
    """Values by keyword; None if they are not written so."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            return None
        return {str(k.arg): _literal(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal(node: ast.expr) -> Any:
    """A literal's value; JSON's own words count too. Raises ValueError for anything else."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"no value in JSON is like {type(value).__name__}")
    return value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("keys must be strings")
    return node.value

"""Reading JSON as it arrives, a character at a time: where a value ends, and what a call's object says. Nothing is
parsed twice, and what was read never changes with what comes.
"""

import json

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "function")
"""Small Llama models write {"type": "function", "function": NAME, "parameters": {...}} at times."""


class ValueScan:
    """Finds the end of one JSON value by its brackets and quotes. A number or word ends before a character that
    cannot be part of it, which is then not taken."""

    def __init__(self) -> None:
        self.text = ""
        self.done = False
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, character: str) -> bool:
        """Take the next character; False if the value ended before it."""
        if self._in_string:
            self.text += character
            self._in_string = self._escaped or character != '"'
            self._escaped = not self._escaped and character == "\\"
            self.done = not self._in_string and self._depth == 0
            return True
        if self._depth == 0 and self.text and character in ",}]" + _SPACE:
            self.done = True
            return False
        self.text += character
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.done = self._depth <= 0
        return True


class CallScan:
    """Reads {"name": ..., "arguments": {...}} (or "parameters"), keys in any order. name is set once it is known;
    arguments read before it are held. failed: this is not a call. done: the object has ended."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.done = self.failed = False
        self.raw = ""
        self._expected = "{"
        self._key: ValueScan | None = None
        self._named = ""
        self._value: ValueScan | None = None
        self._held = ""
        self._argued = False

    def feed(self, character: str) -> str:
        """Take the next character, unless done or failed; returns what it adds to the arguments."""
        self.raw += character
        added, taken = self._inside(character)
        if not taken and not self.failed:
            self._between(character)
        if self.done and self.name is None:
            self.done, self.failed = False, True
        if self.done and not self._argued:
            added += "{}"
        if self.name is None:
            self._held += added
            return ""
        added, self._held = self._held + added, ""
        return added

    def _inside(self, character: str) -> tuple[str, bool]:
        """Within a key or a value: (what is added to the arguments, whether the character was taken)."""
        if self._key is not None:
            self._key.feed(character)
            if self._key.done:
                self._named, self._key, self._expected = decoded(self._key.text) or "", None, ":"
            return "", True
        value = self._value
        if value is None:
            return "", False
        if not value.text and character in _SPACE:
            return "", True
        taken = value.feed(character)
        is_arguments = self._named in _ARGUMENTS and not self._argued
        is_open = value.text[0] in "{["
        added = character if is_arguments and taken and is_open else ""
        if value.done:
            self._value, self._expected = None, ",}"
            if is_arguments:
                self._argued = True
                added += "" if is_open else _whole(value.text)
            if self._named in _NAMES and self.name is None:
                self.name = decoded(value.text) or None
                self.failed = self.name is None and self._named == "name"
        return added, taken

    def _between(self, character: str) -> None:
        if character in _SPACE:
            return
        if character not in self._expected:
            self.failed = True
        elif character == "{":
            self._expected = '"}'
        elif character == "}":
            self.done = True
        elif character == ",":
            self._expected = '"'
        elif character == ":":
            self._value = ValueScan()
        else:
            self._key = ValueScan()
            self._key.feed(character)


def decoded(text: str) -> str | None:
    """The string that a piece of JSON stands for, None if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _whole(text: str) -> str:
    """Arguments that are no object: JSON inside a string is taken out, null is none."""
    inside = decoded(text)
    return inside if inside is not None else "{}" if text == "null" else text

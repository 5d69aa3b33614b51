"""Calls as Mistral's models write them after [TOOL_CALLS]: a list of objects with name and arguments, or (newer ones) a
name and then its arguments, with [ARGS] between them and [TOOL_CALLS] before each.
"""

from headrace.server.tools.calls import CallWriter
from headrace.server.tools.json_scan import ValueScan
from headrace.server.tools.markers import MarkerSearch
from headrace.server.tools.parts import NewId, Parts

MARKER, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_SPACE = " \t\r\n"


class MistralParser:
    """A ToolParser. Which of the two ways is told by what follows the marker: a bracket, or a name."""

    def __init__(self, new_id: NewId) -> None:
        self._calls = CallWriter(new_id)
        self._text = MarkerSearch(MARKER)
        self._state = "text"
        self._name = ""
        self._arguments = ValueScan()

    def feed(self, text: str) -> Parts:
        parts = Parts()
        while text:
            if self._state == "text":
                text = self._feed_text(text, parts)
            elif self._state == "object":
                failed, text = self._calls.feed(text, parts)
                parts.content += failed
                if not self._calls.busy:
                    self._state = "text" if failed else "list"
            else:
                self._feed_character(text[0], parts)
                text = text[1:]
        return parts

    def finish(self) -> Parts:
        if self._state == "object":
            return Parts(self._calls.finish() or "")
        if self._state == "name":
            return Parts(self._name)
        return Parts(self._text.finish())

    def _feed_text(self, text: str, parts: Parts) -> str:
        before, marker, text = self._text.feed(text)
        parts.content += before
        if marker is not None:
            self._state, self._name, self._arguments = "open", "", ValueScan()
        return text

    def _feed_character(self, character: str, parts: Parts) -> None:
        if self._state == "open":
            if character in _SPACE:
                return
            self._state = "list" if character == "[" else "name"
            if self._state == "list":
                return
        if self._state == "list":
            self._between(character, parts)
        elif self._state == "name":
            self._feed_name(character, parts)
        else:
            self._argue(character, parts)

    def _between(self, character: str, parts: Parts) -> None:
        """Between the objects of a list."""
        if character == "{":
            self._calls.begin()
            self._calls.feed(character, parts)
            self._state = "object"
        elif character not in _SPACE + ",":
            self._end_calls()
            parts.content += character if character != "]" else ""

    def _feed_name(self, character: str, parts: Parts) -> None:
        self._name += character
        if character != "{" and not self._name.endswith(ARGUMENTS):
            return
        name = self._name.removesuffix("{").removesuffix(ARGUMENTS).partition(CALL_ID)[0].strip(_SPACE)
        if not name:
            self._state = "text"
            parts.content += self._name
            return
        self._state = "arguments"
        self._calls.named(name, parts)
        if character == "{":
            self._argue(character, parts)

    def _argue(self, character: str, parts: Parts) -> None:
        if not self._arguments.text and character in _SPACE:
            return
        if self._arguments.feed(character):
            parts.argue(self._calls.count - 1, character)
        if self._arguments.done:
            self._end_calls()

    def _end_calls(self) -> None:
        self._state = "text"
        self._text.skip_space()

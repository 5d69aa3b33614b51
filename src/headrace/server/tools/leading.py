"""Calls that are the whole answer, as JSON: {"name": ..., "parameters": {...}}, several after one another (Llama 3 puts
a semicolon between them) or in a list. An answer that begins otherwise, or whose first object is no call, is text.
"""

from headrace.server.tools.calls import CallWriter
from headrace.server.tools.parts import NewId, Parts

_SPACE = " \t\r\n"
_BETWEEN = _SPACE + ",;]"


class LeadingParser:
    """A ToolParser. marker: what may stand before the calls; it is no text."""

    def __init__(self, new_id: NewId, *, marker: str = "") -> None:
        self._calls = CallWriter(new_id)
        self._marker = marker
        self._head = ""
        self._is_text = False

    def feed(self, text: str) -> Parts:
        parts = Parts()
        while text and not self._is_text:
            if self._calls.busy:
                failed, text = self._calls.feed(text, parts)
                if failed:
                    self._turn_to_text(failed, parts)
            elif text[0] == "{":
                self._calls.begin()
            elif self._may_stand_between(text[0]):
                self._head += text[0]
                text = text[1:]
            else:
                self._turn_to_text("", parts)
        parts.content += text
        return parts

    def finish(self) -> Parts:
        failed = self._calls.finish()
        if self._is_text or (self._calls.count and failed is None):
            return Parts()
        parts = Parts()
        self._turn_to_text(failed or "", parts)
        return parts

    def _may_stand_between(self, character: str) -> bool:
        if self._calls.count:
            return character in _BETWEEN
        head = (self._head + character).strip(_SPACE)
        return self._marker.startswith(head) or head.removeprefix(self._marker).strip(_SPACE) in ("", "[")

    def _turn_to_text(self, failed: str, parts: Parts) -> None:
        """It is no call after all."""
        head = self._head if not self._calls.count else ""
        begun = head.lstrip(_SPACE)
        if self._marker and begun.startswith(self._marker):
            head = begun.removeprefix(self._marker)
        self._is_text = True
        parts.content += head + failed

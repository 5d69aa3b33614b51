"""Calls between tags, as Hermes and Qwen write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any
number of them, before, between and after ordinary text.
"""

from headrace.server.tools.calls import CallWriter
from headrace.server.tools.markers import MarkerSearch
from headrace.server.tools.parts import NewId, Parts

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class TaggedParser:
    """A ToolParser. After a call, text counts only from the closing tag on, but for another call that stands in the
    same tags; a tag that is missing is not missed when the next call opens."""

    def __init__(self, new_id: NewId) -> None:
        self._calls = CallWriter(new_id)
        self._text = MarkerSearch(OPEN)
        self._end = MarkerSearch(CLOSE, OPEN, "{")
        self._ending = False
        self._bare = False

    def feed(self, text: str) -> Parts:
        parts = Parts()
        while text:
            if self._calls.busy:
                failed, text = self._calls.feed(text, parts)
                if failed and self._bare:
                    self._ending, text = True, failed[1:] + text
                elif failed:
                    parts.content += self._text.space + OPEN
                    text = failed + text
                else:
                    self._ending = not self._calls.busy
            elif self._ending:
                _, marker, text = self._end.feed(text)
                self._ending = marker is None
                self._text.skip_space()
                self._bare = marker == "{"
                if marker in (OPEN, "{"):
                    self._calls.begin()
                    text = "{" + text if self._bare else text
            else:
                before, marker, text = self._text.feed(text)
                parts.content += before
                if marker is not None:
                    self._bare = False
                    self._calls.begin()
        return parts

    def finish(self) -> Parts:
        failed = self._calls.finish()
        if failed is not None and not self._bare:
            return Parts(self._text.space + OPEN + failed)
        return Parts(self._text.finish())

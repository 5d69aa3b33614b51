"""Telling a model's reasoning, between <think> and </think>, from its answer, in text that arrives in pieces."""

from headrace.server.tools.markers import MarkerSearch

OPEN, CLOSE = "<think>", "</think>"
_SPACE = " \t\r\n"


class ReasoningSplitter:
    """inside: the answer begins within the reasoning, since the prompt has opened it. Otherwise there is reasoning only
    if the answer begins with <think>. White space beside the tags is neither's."""

    def __init__(self, *, inside: bool) -> None:
        self._state = "inside" if inside else "before"
        self._head = ""
        self._close = MarkerSearch(CLOSE)
        self._begun = False
        """Whether what comes now has shown something else than white space."""

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) that are certain now."""
        if self._state == "before":
            self._head += text
            begun = self._head.lstrip(_SPACE)
            if OPEN.startswith(begun) and begun != OPEN:
                return "", ""
            text, self._head = self._head, ""
            self._state = "inside" if begun.startswith(OPEN) else "answer"
            if self._state == "answer":
                self._begun = True
        if self._state != "inside":
            return "", self._trimmed(text)
        if not self._begun:
            self._head += text
            begun = self._head.lstrip(_SPACE)
            if OPEN.startswith(begun) and begun != OPEN:
                return "", ""
            text, self._head = begun.removeprefix(OPEN), ""
            self._begun = True
            self._close.skip_space()
        reasoning, marker, rest = self._close.feed(text)
        if marker is None:
            return reasoning, ""
        self._state, self._begun = "answer", False
        return reasoning, self._trimmed(rest)

    def finish(self) -> tuple[str, str]:
        """The rest, when nothing more comes."""
        head, self._head = self._head, ""
        if self._state == "inside":
            return head + self._close.finish(), ""
        return "", head

    def _trimmed(self, text: str) -> str:
        """The answer without white space before it, if it follows reasoning."""
        if not self._begun:
            text = text.lstrip(_SPACE)
            self._begun = bool(text)
        return text

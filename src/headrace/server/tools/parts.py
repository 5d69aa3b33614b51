"""What a model's text turns out to be: content, and calls of tools. A parser is fed the text in pieces and answers
with Parts; added up, they are the same however the text was cut.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class CallPart:
    """A piece of call number `index`. Its first piece has id and name; arguments are JSON text, piece by piece."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Parts:
    content: str = ""
    calls: list[CallPart] = field(default_factory=list)

    def begin(self, index: int, call_id: str, name: str) -> None:
        self.calls.append(CallPart(index, call_id, name))

    def argue(self, index: int, text: str) -> None:
        """More of a call's arguments."""
        if not text:
            return
        if self.calls and self.calls[-1].index == index:
            self.calls[-1].arguments += text
        else:
            self.calls.append(CallPart(index, arguments=text))


class ToolParser(Protocol):
    def feed(self, text: str) -> Parts:
        """What is certain now."""

    def finish(self) -> Parts:
        """The rest, when nothing more comes."""


NewId = Callable[[], str]
"""Makes the id of a call."""


def merged(parts: list[Parts]) -> Parts:
    """All of an answer's parts as one: each call whole."""
    whole = Parts("".join(part.content for part in parts))
    for piece in (call for part in parts for call in part.calls):
        if piece.name is not None:
            whole.calls.append(CallPart(piece.index, piece.id, piece.name))
        whole.calls[piece.index].arguments += piece.arguments
    return whole

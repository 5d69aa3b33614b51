"""AnswerBlocks: one choice's text, as it arrives, becomes blocks in the order in which the model wrote them: reasoning,
text and calls of tools. The text is read a character at a time, so that the blocks are the same however it was cut.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace.server.answer_reader import AnswerReader, Read


class Kind(enum.StrEnum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """index: its place in the answer. text: so far; a call's are its arguments, as JSON. id, name: of a call."""

    kind: Kind
    index: int
    text: str = ""
    id: str = ""
    name: str = ""


class What(enum.Enum):
    BEGUN = 0
    MORE = 1
    ENDED = 2


class Change(NamedTuple):
    what: What
    block: Block
    text: str = ""


class AnswerBlocks:
    """reader: None where all is text. reasoning_tokens: how many of the tokens so far came while the model reasoned."""

    def __init__(self, reader: AnswerReader | None) -> None:
        self.blocks: list[Block] = []
        self.reasoning_tokens = 0
        self._reader = reader

    @property
    def called(self) -> bool:
        return any(block.kind is Kind.CALL for block in self.blocks)

    def feed(self, text: str, num_tokens: int, *, last: bool) -> list[Change]:
        """The next piece of the text and the tokens that it took; with the last one comes all that was held back. An
        answer has a block at least."""
        changes: list[Change] = []
        for read in self._read(text, last):
            self._take(Kind.REASONING, read.reasoning, changes)
            self._take(Kind.TEXT, read.content, changes)
            for call in read.calls:
                if call.name is not None:
                    self._begin(Block(Kind.CALL, len(self.blocks), "", call.id or "", call.name), changes)
                self._add(call.arguments, changes)
        if self.blocks and self.blocks[-1].kind is Kind.REASONING:
            self.reasoning_tokens += num_tokens
        if last and not self.blocks:
            self._begin(Block(Kind.TEXT, 0), changes)
        if last:
            changes.append(Change(What.ENDED, self.blocks[-1]))
        return changes

    def _read(self, text: str, last: bool) -> Iterator[Read]:
        if self._reader is None:
            yield Read(content=text)
            return
        for character in text:
            yield self._reader.feed(character, last=False)
        if last:
            yield self._reader.feed("", last=True)

    def _take(self, kind: Kind, text: str, changes: list[Change]) -> None:
        if not text:
            return
        if not self.blocks or self.blocks[-1].kind is not kind:
            self._begin(Block(kind, len(self.blocks)), changes)
        self._add(text, changes)

    def _begin(self, block: Block, changes: list[Change]) -> None:
        if self.blocks:
            changes.append(Change(What.ENDED, self.blocks[-1]))
        self.blocks.append(block)
        changes.append(Change(What.BEGUN, block))

    def _add(self, text: str, changes: list[Change]) -> None:
        block = self.blocks[-1]
        block.text += text
        if changes[-1:] and changes[-1].what is What.MORE and changes[-1].block is block:
            text = changes.pop().text + text
        if text:
            changes.append(Change(What.MORE, block, text))

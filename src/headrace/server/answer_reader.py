"""Reading: how the answers of one request are read, and held to their form. AnswerReader: one choice's text, as it
arrives, becomes what a chat answer has: reasoning, content and calls of tools. Fed in whatever pieces, it adds up to
the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headrace.core.errors import RequestError
from headrace.core.request import SamplingParams
from headrace.core.structured import StructuredOutputsParams
from headrace.server import reasoning
from headrace.server.reasoning import ReasoningSplitter
from headrace.server.tools.choice import ToolChoice
from headrace.server.tools.parts import CallPart, Parts, ToolParser, merged


@dataclass(frozen=True, slots=True)
class Read:
    """What a piece of text has brought."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallPart] = field(default_factory=list)


class AnswerReader:
    """splitter, parser: None where the answer has no such parts. several: whether calls after the first count."""

    def __init__(self, splitter: ReasoningSplitter | None, parser: ToolParser | None, *, several: bool = True) -> None:
        self._splitter = splitter
        self._parser = parser
        self._several = several
        self.called = False
        """Whether a tool was called."""

    def feed(self, text: str, *, last: bool) -> Read:
        """The next piece of the text; with the last one comes all that was held back."""
        reasoning, answer = ("", text) if self._splitter is None else self._splitter.feed(text)
        if last and self._splitter is not None:
            more, rest = self._splitter.finish()
            reasoning, answer = reasoning + more, answer + rest
        parts = [Parts(answer)] if self._parser is None else [self._parser.feed(answer)]
        if last and self._parser is not None:
            parts.append(self._parser.finish())
        calls = [call for part in parts for call in part.calls if self._several or call.index == 0]
        self.called = self.called or bool(calls)
        return Read(reasoning, "".join(part.content for part in parts), calls)

    def whole(self, text: str) -> Read:
        """All of an answer at once."""
        read = self.feed(text, last=True)
        return Read(read.reasoning, read.content, merged([Parts(calls=read.calls)]).calls)


@dataclass(frozen=True, slots=True)
class Reading:
    """tools: None if the answer calls none. reasons: whether it may hold reasoning; inside: whether it begins there."""

    tools: ToolChoice | None = None
    reasons: bool = False
    inside: bool = False

    @property
    def shown(self) -> tuple[str, ...]:
        """Special tokens that must be seen in the text."""
        tags = (reasoning.OPEN, reasoning.CLOSE) if self.reasons else ()
        return tags if self.tools is None else (*tags, *self.tools.format.shown)

    def new_reader(self) -> AnswerReader | None:
        """For one choice; None where its text is all content."""
        if self.tools is None and not self.reasons:
            return None
        splitter = ReasoningSplitter(inside=self.inside) if self.reasons else None
        if self.tools is None:
            return AnswerReader(splitter, None)
        return AnswerReader(splitter, self.tools.format.parser(self.tools.format.new_id), several=self.tools.several)

    def held_to_form(self, params: SamplingParams) -> SamplingParams:
        """The parameters with the form that tools and reasoning give the output. Raises RequestError."""
        given = params.structured_outputs
        if given is not None and self.tools is not None and self.tools.must:
            raise RequestError(
                "response_format and structured_outputs do not go with a tool_choice that requires a call",
                param="tool_choice",
            )
        form = given
        if self.tools is not None and self.tools.must:
            form = StructuredOutputsParams(calls=self.tools.calls)
        elif self.tools is not None and given is not None:
            form = msgspec.structs.replace(given, calls=self.tools.calls)
        if form is not None and self.reasons:
            tags = ("" if self.inside else reasoning.OPEN, reasoning.CLOSE)
            form = msgspec.structs.replace(form, reasoning=tags)
        return params if form is given else msgspec.structs.replace(params, structured_outputs=form)


def read_as(tools: ToolChoice | None, reasoning_parser: str | None, prompt_ends: Callable[[], str]) -> Reading:
    """How to read the answers to a prompt. prompt_ends: its last few tokens' text, which tells whether the template
    has opened or closed the reasoning."""
    if reasoning_parser is None:
        return Reading(tools)
    end = prompt_ends().rstrip()
    if end.endswith(reasoning.CLOSE):
        return Reading(tools)
    inside = reasoning_parser == "deepseek_r1" or end.endswith(reasoning.OPEN)
    return Reading(tools, reasons=True, inside=inside)

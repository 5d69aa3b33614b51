"""A conversation remembers what was said, survives Ctrl-C and refusals, and ends at Ctrl-D."""

from __future__ import annotations

import pytest

from headrace.commands.conversation import converse
from headrace.core.errors import EngineError, RequestError


class Typist:
    """Types these lines, then Ctrl-D. An exception is a key that was struck instead of a line."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self.lines = list(lines)

    def __call__(self, prompt: str) -> str:
        line = self.lines.pop(0) if self.lines else EOFError
        if isinstance(line, str):
            return line
        raise line


class Model:
    """Answers `<n messages>` in two pieces, or does what the question says."""

    def __init__(self) -> None:
        self.seen: list[list[dict[str, str]]] = []
        self.closed = 0

    def __call__(self, messages):
        self.seen.append(messages)
        try:
            yield f"{len(messages)} "
            question = messages[-1]["content"]
            if question == "interrupt":
                raise KeyboardInterrupt
            if question == "refuse":
                raise RequestError("the prompt is too long", param="prompt")
            if question == "die":
                raise EngineError("the engine is gone")
            yield "messages"
        finally:
            self.closed += 1


def test_every_turn_is_remembered(capsys):
    model = Model()
    converse(model, Typist("hello", "", "again"), system="be short")
    assert model.seen[-1] == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "2 messages"},
        {"role": "user", "content": "again"},
    ]
    assert capsys.readouterr().out == "2 messages\n4 messages\n\n"


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said():
    model = Model()
    converse(model, Typist("interrupt", "go on"))
    assert model.seen[-1][1] == {"role": "assistant", "content": "1 "}
    assert model.closed == 2


def test_ctrl_c_at_the_prompt_asks_again():
    model = Model()
    converse(model, Typist(KeyboardInterrupt, "hello"))
    assert len(model.seen) == 1


def test_a_refused_question_is_forgotten(capsys):
    model = Model()
    converse(model, Typist("hello", "refuse", "again"))
    assert [m["content"] for m in model.seen[-1]] == ["hello", "1 messages", "again"]
    assert capsys.readouterr().err == "error: the prompt is too long\n"


def test_a_dead_engine_ends_the_conversation():
    with pytest.raises(EngineError):
        converse(Model(), Typist("die", "never asked"))


def test_through_a_pipe_nobody_is_prompted_and_refusals_are_counted(capsys):
    prompts = []
    lines = iter(["one", "refuse", "two"])

    def read(prompt):
        prompts.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert converse(Model(), read, typed=False) == 1
    said = capsys.readouterr()
    assert set(prompts) == {""}
    assert said.out.endswith("3 messages\n")
    assert "too long" in said.err
    assert converse(Model(), Typist("hello")) == 0

"""Guesses change no answer of the API, whatever is asked for: tools that may, must or must not be called, forms, stops,
choices, log-probabilities and parameters drawn together, streamed or whole, several clients at once, over a decoder
whose text is noise unless a form holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from tests.combinations import SCRIPTS, Script
from tests.server.fake_engine import EOS, VOCAB, ByteTokenizer
from tests.server.local_engine import LocalEngine, tiny_executor
from tests.server.serving import CHAT, COMPLETIONS, MODEL, events, http, user
from tests.server.serving import settings as server_settings
from tests.server.test_tool_calls import Bytes, ToolTemplate

from headrace.core.request import OutputDelta, Request
from headrace.models.grammar import GrammarCompiler
from headrace.policy import speculation
from headrace.policy.speculation import Drafter
from headrace.server.app import create_app
from headrace.worker.drafters.by_name import lookup_drafter

SIZES = {
    "type": "object",
    "properties": {"n": {"enum": [1, 22, "x"]}},
    "required": ["n"],
    "additionalProperties": False,
}
BUY = {"type": "function", "function": {"name": "buy", "strict": True, "parameters": SIZES}}
TIME = {"type": "function", "function": {"name": "time"}}
NAMED = {"type": "function", "function": {"name": "buy"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SIZES}}

COMMON = {
    "temperature": st.sampled_from([0.0, 0.0, 1.0, 2.0]),
    "n": st.integers(1, 3),
    "stop": st.sampled_from(["e", ["ab", "}", "<tool"], '"n"']),
    "top_p": st.sampled_from([0.5, 0.9]),
    "min_p": st.just(0.05),
    "presence_penalty": st.sampled_from([-1.0, 1.5]),
    "repetition_penalty": st.sampled_from([0.8, 1.4]),
    "logit_bias": st.sampled_from([{str(EOS): 6.0}, {"97": 20.0, "98": 20.0}]),
    "num_speculative_tokens": st.integers(0, 3),
    "priority": st.integers(0, 2),
    "include_stop_str_in_output": st.booleans(),
}
FREE = {"ignore_eos": st.booleans(), "min_tokens": st.integers(0, 5), "bad_words": st.just(["a", "b c"])}
ALWAYS = {"seed": st.integers(0, 3), "max_tokens": st.sampled_from([6, 20, 60, 60]), "stream": st.booleans()}


def chats() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    scored = st.sampled_from([{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
    called = st.builds(
        lambda choice, several: {"tools": [BUY, TIME], "tool_choice": choice, "parallel_tool_calls": several},
        st.sampled_from(["auto", "required", "none", NAMED]),
        st.booleans(),
    )
    held = st.sampled_from([{"response_format": {"type": "json_object"}}, {"response_format": SCHEMA}])
    kinds = st.one_of(called, called, held, st.fixed_dictionaries({}, optional=FREE))
    bodies = st.fixed_dictionaries(ALWAYS, optional=COMMON)
    texts = st.sampled_from(["Hello", "Hello, you", "<tool_call>"])
    return st.builds(lambda b, k, s, text: (CHAT, user(text, **{**b, **k, **s})), bodies, kinds, scored, texts)


def completions() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    more = {**COMMON, **FREE, "logprobs": st.integers(0, 3), "echo": st.booleans(), "prompt_logprobs": st.just(1)}
    bodies = st.fixed_dictionaries(ALWAYS, optional=more)
    prompts = st.sampled_from(["Hello", ["Hello", "Hello there"], "ab ab ab ab"])
    return st.builds(lambda b, prompt: (COMPLETIONS, {"model": MODEL, "prompt": prompt, **b}), bodies, prompts)


class Listening(LocalEngine):
    """Keeps what each request was given, in texts of prompt and output."""

    def __init__(self, drafter: Drafter | None, depth: int) -> None:
        self.grammars = GrammarCompiler(Bytes, VOCAB)
        super().__init__(tiny_executor(compile_grammar=self.grammars.compile), drafter, pipeline_depth=depth)
        self.texts: list[list[int]] = []

    async def add(self, request: Request) -> AsyncIterator[OutputDelta]:
        stream = await super().add(request)
        self.texts.append(text := list(request.prompt_ids))

        async def listened() -> AsyncIterator[OutputDelta]:
            async for delta in stream:
                text.extend(delta.token_ids)
                yield delta

        return listened()


async def answers(engine: Listening, asked: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    app: Starlette = create_app(
        engine, ByteTokenizer(), ToolTemplate(), server_settings(tool_format="hermes"), engine.grammars
    )
    try:
        async with http(app) as client:
            sent = [client.post(path, json=body) for path, body in asked]
            replies = await asyncio.gather(*sent)
    finally:
        app.state.service.close()
        await engine.close()
    assert engine.idle
    assert all(reply.status_code in (200, 400) for reply in replies), [reply.text for reply in replies]
    return [
        gathered(events(reply.text)) if body["stream"] and reply.status_code == 200 else (plain(reply.json()))
        for reply, (_, body) in zip(replies, asked, strict=True)
    ]


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Without names, and without what hangs on when others came and on guesses."""
    for choice in answer.get("choices", ()):
        for call in choice.get("message", {}).get("tool_calls") or ():
            del call["id"]
    for details in ("completion_tokens_details", "prompt_tokens_details"):
        answer.get("usage", {}).pop(details, None)
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


def gathered(pieces: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """A stream's choices, however they were cut."""
    whole: dict[int, dict[str, Any]] = {}
    for choice in (choice for piece in pieces for choice in piece["choices"]):
        into = whole.setdefault(choice["index"], {"text": "", "calls": {}, "scores": []})
        delta = choice.get("delta", {})
        into["text"] += choice.get("text", "") + (delta.get("content") or "")
        for call in delta.get("tool_calls") or ():
            name, arguments = into["calls"].get(call["index"], ("", ""))
            said = call["function"]
            into["calls"][call["index"]] = name + said.get("name", ""), arguments + said.get("arguments", "")
        scores = choice.get("logprobs") or {}
        into["scores"] += scores.get("content") or scores.get("token_logprobs") or []
        for name in ("finish_reason", "stop_reason"):
            into[name] = choice.get(name) or into.get(name)
    return whole


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses are made however often they fail."""
    monkeypatch.setattr(speculation._Record, "trust", lambda *_: 1.0)


@pytest.mark.usefixtures("free_rows", "stubborn")
@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=list(HealthCheck))
@given(
    asked=st.lists(st.one_of(chats(), chats(), completions()), min_size=1, max_size=4),
    guesser=st.one_of(SCRIPTS, st.sampled_from(["ngram", "suffix"])),
    depth=st.integers(1, 2),
)
def test_no_answer_changes(asked: list[tuple[str, dict[str, Any]]], guesser: Script | str, depth: int) -> None:
    unguessed = Listening(None, 1)
    wanted = asyncio.run(answers(unguessed, asked))
    if isinstance(guesser, Script):
        drafter = Script(guesser.right, guesser.instead, VOCAB, EOS).drafter(unguessed.texts)
    else:
        drafter = lookup_drafter(guesser)
    assert asyncio.run(answers(Listening(drafter, depth), asked)) == wanted

"""A real model held to forms: whatever the temperature, what comes out has the form. A model of this size would not
get a single one of these right by itself."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, SamplingParams, StructuredOutputsParams
from headrace.core.errors import RequestError
from headrace.core.request import Request
from headrace.server.tools.formats import FORMATS
from headrace.server.tools.parts import merged

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPT = "Write anything but JSON: "


@pytest.fixture(scope="module")
def llm(default_model: Path) -> LLM:
    return LLM(model=str(default_model), max_model_len=256, max_num_seqs=8)


def answers(llm: LLM, max_tokens: int = 96, **form: Any) -> list[str]:
    """Whole answers at several temperatures, drawn in one batch."""
    wanted = StructuredOutputsParams(**form)
    params = [
        SamplingParams(temperature=t, seed=7, n=2, max_tokens=max_tokens, structured_outputs=wanted)
        for t in (0.0, 1.0, 2.0)
    ]
    outputs = [output for request in llm.generate([PROMPT] * 3, params) for output in request.outputs]
    assert {output.finish_reason for output in outputs} <= {"stop", "length"}
    whole = [output.text for output in outputs if output.finish_reason == "stop"]
    assert whole
    return whole


def test_json_of_a_schema(llm: LLM) -> None:
    for text in answers(llm, json=PERSON):
        person = json.loads(text)
        assert list(person) == ["name", "age", "tags"]
        assert len(person["name"]) <= 12
        assert 0 <= person["age"] <= 150
        assert set(person["tags"]) <= {"new", "old"}


def test_the_other_forms(llm: LLM) -> None:
    assert set(answers(llm, 16, choice=["red", "green"])) <= {"red", "green"}
    assert all(re.fullmatch(r"\d{3}-[a-f]{4}", text) for text in answers(llm, 16, regex=r"\d{3}-[a-f]{4}"))
    assert all(re.fullmatch(r"x[ab]{2}\.", text) for text in answers(llm, 16, grammar='root ::= "x" [ab] [ab] "."'))


@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_must_come_are_read_back(llm: LLM, name: str) -> None:
    """What each format's form lets a model write is what its parser reads."""
    schema = {"type": "object", "properties": {"size": {"enum": [1, 2]}, "is_new": {"type": "boolean"}}}
    schema |= {"required": ["size", "is_new"], "additionalProperties": False}
    form = FORMATS[name].form([("buy", schema, True), ("stop_it", {"type": "object", "maxProperties": 0}, True)], False)
    for text in answers(llm, 64, calls=form):
        parser = FORMATS[name].parser(lambda: "id")
        found = merged([parser.feed(text), parser.finish()])
        assert found.content == ""
        (call,) = found.calls
        arguments = json.loads(call.arguments)
        assert (call.name, set(arguments)) in (("buy", {"size", "is_new"}), ("stop_it", set()))
        assert not arguments or (arguments["size"] in (1, 2) and isinstance(arguments["is_new"], bool))


def test_what_is_not_understood_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="unclosed group"):
        llm.generate([PROMPT], SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")))
    assert llm.stats.running == 0


def test_log_probabilities_are_the_models_own(llm: LLM) -> None:
    free = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=1, logprobs=1))[0].outputs[0]
    form = StructuredOutputsParams(choice=["zebra"])
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1, structured_outputs=form)
    held = llm.generate([PROMPT], params)[0].outputs[0]
    assert "zebra".startswith(held.text)
    assert held.logprobs[0][free.token_ids[0]] == free.logprobs[0][free.token_ids[0]]
    assert held.logprobs[0][held.token_ids[0]].logprob < free.logprobs[0][free.token_ids[0]].logprob


@pytest.mark.usefixtures("free_rows")
def test_guessing_ahead_changes_no_token_of_a_form(llm: LLM, default_model: Path) -> None:
    """Drafts are masked row by row: a matcher steps back from those that were not accepted."""
    tags = {"type": "array", "items": {"enum": ["new", "old"]}, "minItems": 6, "maxItems": 8}
    form = StructuredOutputsParams(json={"type": "object", "properties": {"tags": tags}, "required": ["tags"]})
    params = [
        SamplingParams(temperature=t, seed=5, max_tokens=60, structured_outputs=form, logprobs=0) for t in (0.0, 1.0)
    ]
    prompts = ['Always {"tags": ["new", "new", "old"]} {"tags":'] * 2
    guessing = LLM(model=str(default_model), max_model_len=256, max_num_seqs=8, speculate="ngram")
    plain, guessed = (engine.generate(prompts, params) for engine in (llm, guessing))
    assert guessing.stats.accepted_tokens > 0
    for one, other in zip(plain, guessed, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].cumulative_logprob == other.outputs[0].cumulative_logprob


def test_nobody_waits_for_the_compilation_of_anothers_form(default_model: Path) -> None:
    """While it goes on, another stream has a token of every step, and no token is another for it."""
    llm = LLM(model=str(default_model), max_model_len=128, max_num_seqs=2)
    built = llm._built
    params = SamplingParams(max_tokens=8, temperature=0, structured_outputs=StructuredOutputsParams(regex="(ab|c)+!"))
    stream = Request("stream", [1, 2, 3], SamplingParams(max_tokens=40, temperature=0), 40, 0)
    formed = Request("formed", [4, 5, 6], params, 8, 0)
    compile_now = threading.Event()
    built.grammars._submit(compile_now.wait)
    built.engine.add(stream, 0.0)
    built.engine.add(formed, 0.0)
    for _ in range(8):
        assert [delta.request_id for delta in built.engine.step(lambda: 0.0)] == ["stream"]
    compile_now.set()
    tokens: list[int] = []
    while built.engine.has_work:
        for delta in built.engine.step(lambda: 0.0):
            tokens += delta.token_ids if delta.request_id == "formed" else []
    alone = llm.generate([{"prompt_token_ids": [4, 5, 6]}], params)[0].outputs[0]
    assert tokens == list(alone.token_ids)
    assert re.fullmatch(r"(ab|c)+!?|(ab|c)*a", alone.text)

"""response_format and structured_outputs: what reaches the engine, and what is refused before it, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import EOS, VOCAB, ByteTokenizer, FakeEngine, PlainTemplate, say, token_bytes
from tests.server.serving import CHAT, COMPLETIONS, MODEL, http, refusal, settings, user

from headrace.core.structured import StructuredOutputsParams
from headrace.models.grammar import GrammarCompiler
from headrace.server.app import create_app

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Bytes:
    """The fake engine's vocabulary."""

    vocab_size, bos_id, eos_ids = VOCAB, None, (EOS,)
    special_ids = frozenset({EOS, EOS + 1})
    token_bytes = staticmethod(token_bytes)


@pytest.fixture
def app(engine: FakeEngine) -> Iterator[Starlette]:
    grammars = GrammarCompiler(Bytes, VOCAB)
    app = create_app(engine, ByteTokenizer(), PlainTemplate(), settings(), grammars)
    yield app
    app.state.service.close()


def as_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
        ({"response_format": as_schema(SCHEMA)}, StructuredOutputsParams(json=SCHEMA, lenient=True)),
        ({"response_format": as_schema(SCHEMA, strict=True)}, StructuredOutputsParams(json=SCHEMA)),
        (
            {"response_format": as_schema({**SCHEMA, "if": {}})},
            StructuredOutputsParams(json={**SCHEMA, "if": {}}, lenient=True),
        ),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, StructuredOutputsParams(json=SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutputsParams(regex="a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputsParams(choice=["a", "b"])),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, StructuredOutputsParams(grammar='root ::= "a"')),
    ],
)
async def test_the_form_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], wanted: StructuredOutputsParams | None
) -> None:
    for path, body in ((CHAT, user("hi")), (COMPLETIONS, {"model": MODEL, "prompt": "hi"})):
        answer = await client.post(path, json={**body, **fields})
        assert answer.status_code == 200, answer.text
        assert engine.added[-1].params.structured_outputs == wanted


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "must be one of text, json_object, json_schema"),
        ({"response_format": {}}, "response_format", "response_format.type must be one of"),
        ({"response_format": "json"}, "response_format", "expected object, got str"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "must be an object with name and schema"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format", "unknown field"),
        ({"response_format": as_schema(None)}, "response_format", "response_format.json_schema.schema must be"),
        ({"response_format": as_schema(SCHEMA, strict=1)}, "response_format", "strict must be a boolean, got 1"),
        ({"response_format": as_schema(SCHEMA, stict=True)}, "response_format", "did you mean strict?"),
        (
            {"response_format": as_schema({"type": "foo"})},
            "response_format",
            "schema.schema is not understood: Invalid type: foo",
        ),
        ({"response_format": as_schema({"if": {}}, strict=True)}, "response_format", 'Unimplemented keys: ["if"]'),
        ({"structured_outputs": {}}, "structured_outputs", "got none"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs", "json must be a non-empty string"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "must be true or left out, got False"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "regex is not understood: unclosed group"),
        ({"structured_outputs": {"rexeg": "a"}}, "structured_outputs", "did you mean regex?"),
        ({"structured_outputs": {"regex": "a", "lenient": True}}, "structured_outputs", "unknown field"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "known: json, regex"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "both",
        ),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens", "does not go with structured_outputs"),
        ({"guided_json": SCHEMA}, "guided_json", "older name of structured_outputs.json"),
        ({"guided_regex": "a"}, "guided_regex", "older name of structured_outputs.regex"),
    ],
)
async def test_refused_by_name(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str, message: str
) -> None:
    for path, body in ((CHAT, user("hi")), (COMPLETIONS, {"model": MODEL, "prompt": "hi", "stream": True})):
        error = refusal(await client.post(path, json={**body, **fields}))
        assert error["param"] == param
        assert message in error["message"]
    assert engine.added == []


async def test_compiling_leaves_the_event_loop_free(engine: FakeEngine) -> None:
    compiling: Future[None] = Future()

    class Slow:
        def compile(self, wanted: StructuredOutputsParams, /) -> Future[None]:
            return compiling

        def close(self) -> None:
            pass

    engine.reply = say("a")
    app = create_app(engine, ByteTokenizer(), PlainTemplate(), settings(grammar_timeout=0.2), Slow())
    async with http(app) as client:
        body = user("hi", structured_outputs={"regex": "a"})
        slow = asyncio.create_task(client.post(CHAT, json=body))
        assert (await client.post(CHAT, json=user("hi"))).status_code == 200
        refused = await slow
        assert refusal(refused, 503)["code"] == "grammar_timeout"
        assert refused.headers["retry-after"] == "10"
        compiling.set_result(None)
        assert (await client.post(CHAT, json=body)).status_code == 200
    app.state.service.close()


async def test_without_a_vocabulary_no_form_is_taken(engine: FakeEngine) -> None:
    app = create_app(engine, ByteTokenizer(), PlainTemplate(), settings())
    async with http(app) as client:
        error = refusal(await client.post(CHAT, json=user("hi", response_format={"type": "json_object"})))
    assert "response_format is not available" in error["message"]

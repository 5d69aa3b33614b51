"""Tools over the API: what the template and the engine are given, what comes back streamed and whole, and what is
refused by name. The engine says what it is told to; the real openai client is in the room too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import EOS, VOCAB, ByteTokenizer, FakeEngine, PlainTemplate, say, token_bytes
from tests.server.serving import CHAT, MODEL, events, http, refusal, served, settings, user

from headrace.models.grammar import GrammarCompiler
from headrace.server.app import create_app

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OTHER = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


class Bytes:
    """The fake engine's vocabulary."""

    vocab_size, bos_id, eos_ids = VOCAB, None, (EOS,)
    special_ids = frozenset({EOS, EOS + 1})
    token_bytes = staticmethod(token_bytes)


class ToolTemplate(PlainTemplate):
    """Writes tools and calls before the messages. ends: what a prompt ends with."""

    variables = PlainTemplate.variables | {"tools"}

    def __init__(self, ends: str = "") -> None:
        self.ends = ends
        self.given: list[Any] = []

    def encode(self, messages: Any, **fields: Any) -> list[int]:
        self.given.append((messages, fields.get("tools")))
        return [*super().encode(messages, **fields), *self.ends.encode()]


@pytest.fixture
def template() -> ToolTemplate:
    return ToolTemplate()


@pytest.fixture
def make_app(engine: FakeEngine, template: ToolTemplate) -> Iterator[Callable[..., Starlette]]:
    made: list[Starlette] = []

    def make(**changes: Any) -> Starlette:
        grammars = GrammarCompiler(Bytes, VOCAB)
        made.append(
            create_app(engine, ByteTokenizer(), template, settings(**{"tool_format": "hermes", **changes}), grammars)
        )
        return made[-1]

    yield make
    for app in made:
        app.state.service.close()


@pytest.fixture
def app(make_app: Callable[..., Starlette]) -> Starlette:
    return make_app()


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with http(app) as client:
        yield client


def asking(**fields: Any) -> dict[str, Any]:
    return user("hi", **{"tools": [TOOL, OTHER], **fields})


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "a", **fields}}]


NOT = {"type": "object", "properties": {"x": {"not": {}}}}


async def streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A stream's deltas put together as clients do, and its finish reason."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    reason = ""
    for chunk in events((await client.post(CHAT, json={**body, "stream": True})).text):
        choice = chunk["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning") or ""
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for piece in delta.get("tool_calls") or []:
            if "id" in piece:
                assert piece["index"] == len(message["calls"])
                assert piece["type"] == "function"
                message["calls"].append([piece["function"]["name"], ""])
            message["calls"][piece["index"]][1] += piece["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return message, reason


async def whole(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    choice = (await client.post(CHAT, json=body)).json()["choices"][0]
    message = choice["message"]
    assert message.get("reasoning") == message.get("reasoning_content")
    calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])]
    assert len({c["id"] for c in message.get("tool_calls", [])}) == len(calls)
    found = {"content": message["content"] or "", "reasoning": message.get("reasoning", ""), "calls": calls}
    return found, choice["finish_reason"]


@pytest.mark.parametrize(
    ("text", "fields", "content", "called", "reason"),
    [
        ("Hello!", {}, "Hello!", [], "stop"),
        (CALL, {}, "", [["get_weather", '{"city": "Oslo"}']], "tool_calls"),
        (f"Look: {CALL}\n{TIME}", {}, "Look:", [["get_weather", '{"city": "Oslo"}'], ["get_time", "{}"]], "tool_calls"),
        (f"{CALL}\n{TIME}", {"parallel_tool_calls": False}, "", [["get_weather", '{"city": "Oslo"}']], "tool_calls"),
        (CALL, {"tool_choice": "none"}, CALL, [], "stop"),
        (CALL, {"max_tokens": 60}, "", [["get_weather", '{"city": "O']], "length"),
        (CALL, {"tool_choice": "required"}, "", [["get_weather", '{"city": "Oslo"}']], "tool_calls"),
        (
            TIME,
            {"tool_choice": {"type": "function", "function": {"name": "get_time"}}},
            "",
            [["get_time", "{}"]],
            "tool_calls",
        ),
        ("a 일본 👋 <tool_call>x", {}, "a 일본 👋 <tool_call>x", [], "stop"),
    ],
)
@pytest.mark.parametrize("per_delta", [1, 3, 1000])
async def test_streamed_and_whole_answers_are_the_same(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    per_delta: int,
    text: str,
    fields: dict[str, Any],
    content: str,
    called: list[list[str]],
    reason: str,
) -> None:
    engine.reply, engine.per_delta = say(text), per_delta
    expected = {"content": content, "reasoning": "", "calls": called}
    assert await whole(client, asking(**fields)) == (expected, reason)
    assert await streamed(client, asking(**fields)) == (expected, reason)


@pytest.mark.parametrize(
    ("parser", "ends", "text", "reasoning", "content"),
    [
        ("qwen3", "", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("qwen3", "", "Yes.", "", "Yes."),
        ("qwen3", "<think>\n", "Hm.</think>Yes.", "Hm.", "Yes."),
        ("qwen3", "<think>\n\n</think>\n\n", "Yes.</think>", "", "Yes.</think>"),
        ("deepseek_r1", "", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("deepseek_r1", "", "<think>Hm.", "Hm.", ""),
    ],
)
async def test_reasoning(
    make_app: Callable[..., Starlette],
    engine: FakeEngine,
    template: ToolTemplate,
    parser: str,
    ends: str,
    text: str,
    reasoning: str,
    content: str,
) -> None:
    engine.reply, template.ends = say(text), ends
    async with http(make_app(reasoning_parser=parser)) as client:
        expected = {"content": content, "reasoning": reasoning, "calls": []}
        assert await whole(client, user("hi")) == (expected, "stop")
        assert await streamed(client, user("hi")) == (expected, "stop")


async def test_tokens_of_a_conversation_with_tools_are_those_of_its_prompt(
    client: httpx.AsyncClient, engine: FakeEngine, template: ToolTemplate
) -> None:
    await client.post(CHAT, json=asking())
    body = asking()
    response = await client.post("/tokenize", json=body)
    assert response.json()["tokens"] == engine.added[0].prompt_ids
    assert template.given[1][1] == template.given[0][1] == body["tools"]


async def test_calls_after_reasoning(make_app: Callable[..., Starlette], engine: FakeEngine) -> None:
    engine.reply = say(f"<think>{TIME}</think>\n{CALL}")
    async with http(make_app(reasoning_parser="qwen3")) as client:
        expected = {"content": "", "reasoning": TIME, "calls": [["get_weather", '{"city": "Oslo"}']]}
        assert await whole(client, asking()) == (expected, "tool_calls")
        assert await streamed(client, asking()) == (expected, "tool_calls")


async def test_several_choices_have_their_own_calls(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = lambda request: say(CALL if request.choice else "No.")(request)
    choices = (await client.post(CHAT, json=asking(n=2))).json()["choices"]
    assert [c["finish_reason"] for c in choices] == ["stop", "tool_calls"]
    assert choices[0]["message"] == {"role": "assistant", "content": "No.", "refusal": None}
    assert choices[1]["message"]["content"] is None


async def test_the_template_gets_tools_and_earlier_calls(
    client: httpx.AsyncClient, engine: FakeEngine, template: ToolTemplate
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "Hm."},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer = await client.post(CHAT, json={"model": MODEL, "messages": messages, "tools": [TOOL]})
    assert answer.status_code == 200, answer.text
    given, tools = template.given[-1]
    assert tools == [TOOL]
    function = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    called = [{"id": "call_1", "type": "function", "function": function}]
    assert given[1] == {"role": "assistant", "tool_calls": called, "content": "", "reasoning_content": "Hm."}
    assert given[2] == {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}
    await client.post(CHAT, json=asking(tool_choice="none"))
    assert template.given[-1][1] is None


async def test_only_calls_that_must_come_are_held_to_a_form(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    forms = {}
    for name, choice in {"auto": "auto", "required": "required", "named": named}.items():
        assert (await client.post(CHAT, json=asking(tool_choice=choice))).status_code == 200
        forms[name] = engine.added[-1].params.structured_outputs
    assert forms["auto"] is None
    assert len(forms["required"].calls.ways) == 2
    assert forms["required"].calls.between == "\n"
    assert len(forms["named"].calls.ways) == 1
    assert forms["named"].calls.between is None
    await client.post(CHAT, json=asking(response_format={"type": "json_object"}))
    either = engine.added[-1].params.structured_outputs
    assert either.json_object
    assert len(either.calls.ways) == 2


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "tools[0] must be"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0] must be"),
        ({"tools": ["x"]}, "tools", "tools[0] must be"),
        ({"tools": function(name="a b")}, "tools", "tools[0].function.name must be"),
        ({"tools": [TOOL, TOOL]}, "tools", "different names"),
        ({"tools": function(parameters=3)}, "tools", "parameters must be a JSON Schema"),
        ({"tools": function(strict=1)}, "tools", "strict must be true or false"),
        ({"tools": function(args={})}, "tools", "unknown field 'args'"),
        ({"tools": [OTHER] * 129}, "tools", "at most 128"),
        ({"tool_choice": "always"}, "tool_choice", "tool_choice must be"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "tool_choice must be"),
        ({"tool_choice": function(name="x")[0]}, "tool_choice", "'x', which is not one of the tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools to choose from"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice", "requires a call"),
        ({"tool_choice": "required", "tools": function(strict=True, parameters=NOT)}, "tools", 'keys: ["not"]'),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "expected bool, got str"),
    ],
)  # fmt: skip
async def test_refused_by_name(client: httpx.AsyncClient, fields: dict[str, Any], param: str, message: str) -> None:
    for stream in (False, True):
        error = refusal(await client.post(CHAT, json=asking(**{"stream": stream, **fields})))
        assert error["param"] == param
        assert message in error["message"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "tool_calls": "x"}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}, "messages[1].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "content": None}, "messages[1].content"),
        ({"role": "tool", "content": "x", "tool_call_id": 3}, "messages[1].tool_call_id"),
        ({"role": "tool", "content": None, "tool_call_id": "1"}, "messages[1].content"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[1].tool_call_id"),
        ({"role": "function", "content": "x"}, "messages[1].role"),
    ],
)
async def test_messages_that_are_wrong_are_named(
    client: httpx.AsyncClient, message: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}, message]}
    assert refusal(await client.post(CHAT, json=body))["param"] == param


async def test_a_template_that_takes_no_tools_is_said(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(tool_format=None)) as client:
        error = refusal(await client.post(CHAT, json=asking()))
        assert "takes no tools" in error["message"]
        assert (await client.post(CHAT, json=asking(tool_choice="none"))).status_code == 200


# The real client


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    degrees: int | None


async def test_the_openai_client_calls_tools(app: Starlette, engine: FakeEngine) -> None:
    engine.reply = say(f"Look: {CALL}\n{TIME}")
    async with served(app) as port:
        address = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL, OTHER])
            called = answer.choices[0].message.tool_calls
            assert [(c.function.name, json.loads(c.function.arguments)) for c in called] == [
                ("get_weather", {"city": "Oslo"}),
                ("get_time", {}),
            ]
            async with client.chat.completions.stream(model=MODEL, messages=messages, tools=[TOOL, OTHER]) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == "Look:"
            assert [c.function.name for c in final.choices[0].message.tool_calls] == ["get_weather", "get_time"]
            assert final.choices[0].finish_reason == "tool_calls"
            replies = [{"role": "tool", "tool_call_id": c.id, "content": "fine"} for c in called]
            engine.reply = say("All is fine.")
            history = [*messages, answer.choices[0].message, replies[0]]
            last = await client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL, OTHER])
            assert last.choices[0].message.content == "All is fine."

            def talk() -> str | None:
                with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as sync:
                    named = {"type": "function", "function": {"name": "get_weather"}}
                    engine.reply = say(CALL)
                    found = sync.chat.completions.create(
                        model=MODEL, messages=messages, tools=[TOOL], tool_choice=named
                    )
                    return found.choices[0].message.tool_calls[0].function.name

            assert await asyncio.to_thread(talk) == "get_weather"


async def test_the_openai_client_parses_models(app: Starlette, engine: FakeEngine) -> None:
    engine.reply = say('{"city": "Oslo", "degrees": -3}')
    async with served(app) as port:
        address = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            answer = await client.chat.completions.parse(model=MODEL, messages=messages, response_format=Weather)
            assert answer.choices[0].message.parsed == Weather(city="Oslo", degrees=-3)
            form = engine.added[-1].params.structured_outputs
            assert not form.lenient
            assert json.loads(form.json)["additionalProperties"] is False
            engine.reply = say(
                '<tool_call>{"name": "Weather", "arguments": {"city": "Oslo", "degrees": 1}}</tool_call>'
            )
            tool = openai.pydantic_function_tool(Weather)
            answer = await client.chat.completions.parse(
                model=MODEL, messages=messages, tools=[tool], tool_choice="required"
            )
            parsed = answer.choices[0].message.tool_calls[0].function.parsed_arguments
            assert parsed == Weather(city="Oslo", degrees=1)

"""Tools and reasoning in other APIs' shapes, as their own packages read them: calls out and results back in, streamed
as whole however the text is cut, and events that their accumulators take."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pydantic
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import VOCAB, ByteTokenizer, FakeEngine, say
from tests.server.serving import MODEL, served, settings
from tests.server.test_tool_calls import CALL, TIME, Bytes, ToolTemplate

from headrace.models.grammar import GrammarCompiler
from headrace.server.app import create_app

anthropic = pytest.importorskip("anthropic")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": SCHEMA}
CLOCK: Any = {"type": "function", "name": "get_time"}
USED: Any = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}
CLOCK_USED: Any = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
IN_CHAT = {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}
ASKED: Any = [{"role": "user", "content": "hi"}]
ANSWERS = [
    f"<think>Hm.</think>\n\nI look.\n{CALL}\n{TIME}",
    f"{CALL} and 일본 👋 then {TIME} end",
    "<think>Only this",
    "No call <tool_call>at all",
    "",
]


class OpenTemplate(ToolTemplate):
    """Takes any order of roles, and says no more than how many messages there are."""

    def encode(self, messages: Any, **fields: Any) -> list[int]:
        self.given.append((messages, fields.get("tools")))
        return [*b"m" * len(messages)]


@pytest.fixture
def template() -> ToolTemplate:
    return OpenTemplate()


@pytest.fixture
def app(engine: FakeEngine, template: ToolTemplate) -> Iterator[Starlette]:
    given = settings(tool_format="hermes", reasoning_parser="qwen3")
    app = create_app(engine, ByteTokenizer(), template, given, GrammarCompiler(Bytes, VOCAB))
    yield app
    app.state.service.close()


@pytest.fixture
async def claude(app: Starlette) -> AsyncIterator[Any]:
    async with served(app) as port:
        url = f"http://127.0.0.1:{port}"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            yield client


@pytest.fixture
async def gpt(app: Starlette) -> AsyncIterator[openai.AsyncOpenAI]:
    async with served(app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client


def items(output: list[Any]) -> list[tuple[str, str, str]]:
    """type, name and text of a response's items."""
    found = []
    for item in output:
        assert item.status == "completed"
        if item.type == "function_call":
            found.append((item.type, item.name, item.arguments))
        else:
            found.append((item.type, "", "".join(part.text for part in item.content)))
    return found


def blocks(content: list[Any]) -> list[tuple[str, str, Any]]:
    texts = {"thinking": "thinking", "text": "text", "tool_use": "input"}
    return [(one.type, getattr(one, "name", ""), getattr(one, texts[one.type])) for one in content]


async def test_a_responses_answer_has_its_items_in_order(gpt: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply = say(ANSWERS[0])
    response = await gpt.responses.create(model=MODEL, input="hi", tools=[FUNCTION, CLOCK])
    assert items(response.output) == [
        ("reasoning", "", "Hm."),
        ("message", "", "I look."),
        ("function_call", "get_weather", '{"city": "Oslo"}'),
        ("function_call", "get_time", "{}"),
    ]
    assert len({item.id for item in response.output}) == 4
    assert [tool.name for tool in response.tools if tool.type == "function"] == ["get_weather", "get_time"]
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


async def test_an_anthropic_answer_has_its_blocks_in_order(claude: Any, engine: FakeEngine) -> None:
    engine.reply = say(ANSWERS[0])
    message = await claude.messages.create(model=MODEL, max_tokens=190, messages=ASKED, tools=[USED, CLOCK_USED])
    assert blocks(message.content) == [
        ("thinking", "", "Hm."),
        ("text", "", "I look."),
        ("tool_use", "get_weather", {"city": "Oslo"}),
        ("tool_use", "get_time", {}),
    ]
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("per_delta", [1, 2, 7, 1000])
@pytest.mark.parametrize("text", ANSWERS)
async def test_responses_stream_what_they_answer_whole(
    gpt: openai.AsyncOpenAI, engine: FakeEngine, text: str, per_delta: int
) -> None:
    engine.reply, engine.per_delta = say(text), per_delta
    whole = await gpt.responses.create(model=MODEL, input="hi", tools=[FUNCTION, CLOCK])
    events: list[Any] = []
    async with gpt.responses.stream(model=MODEL, input="hi", tools=[FUNCTION, CLOCK]) as stream:
        async for event in stream:
            events.append(event)
        final = await stream.get_final_response()
    assert items(final.output) == items(whole.output)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    written: dict[int, str] = {}
    open_item = None
    for event in events:
        if event.type == "response.output_item.added":
            assert open_item is None and event.output_index == len(written)
            open_item, written[event.output_index] = event.item.id, ""
        elif event.type.endswith(".delta"):
            assert event.item_id == open_item
            written[event.output_index] += event.delta
        elif event.type == "response.output_item.done":
            assert event.item.id == open_item
            open_item = None
        elif event.type == "response.function_call_arguments.done":
            assert event.arguments == written[event.output_index]
    assert list(written.values()) == [said for _, _, said in items(whole.output)]


@pytest.mark.parametrize("per_delta", [1, 2, 7, 1000])
@pytest.mark.parametrize("text", ANSWERS)
async def test_anthropic_streams_what_it_answers_whole(
    claude: Any, engine: FakeEngine, text: str, per_delta: int
) -> None:
    engine.reply, engine.per_delta = say(text), per_delta
    given: Any = {"model": MODEL, "max_tokens": 190, "messages": ASKED, "tools": [USED, CLOCK_USED]}
    whole = await claude.messages.create(**given)
    begun = ended = 0
    async with claude.messages.stream(**given) as stream:
        async for event in stream:
            if event.type == "content_block_start":
                assert event.index == begun == ended
                begun += 1
            elif event.type == "content_block_delta":
                assert event.index == begun - 1
            elif event.type == "content_block_stop":
                assert event.index == ended
                ended += 1
        final = await stream.get_final_message()
    assert begun == ended == len(whole.content) > 0
    assert blocks(final.content) == blocks(whole.content)
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)


async def test_responses_take_back_calls_and_what_they_returned(
    gpt: openai.AsyncOpenAI, engine: FakeEngine, template: ToolTemplate
) -> None:
    engine.reply = say(ANSWERS[0])
    first = await gpt.responses.create(model=MODEL, input="hi", tools=[FUNCTION, CLOCK])
    returned: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sun"}
        for item in first.output
        if item.type == "function_call"
    ]
    returned[1]["output"] = [{"type": "input_text", "text": "noon"}]
    again: Any = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output), *returned]
    engine.reply = say("It is sunny.")
    second = await gpt.responses.create(model=MODEL, input=again, tools=[FUNCTION, CLOCK])
    assert second.output_text == "It is sunny."
    messages, tools = template.given[-1]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    own = messages[1]
    assert (own["reasoning_content"], own["content"]) == ("Hm.", "I look.")
    assert [call["function"] for call in own["tool_calls"]] == [
        {"name": "get_weather", "arguments": {"city": "Oslo"}},
        {"name": "get_time", "arguments": {}},
    ]
    assert [message["content"] for message in messages[2:]] == ["sun", "noon"]
    assert [message["tool_call_id"] for message in messages[2:]] == [call["id"] for call in own["tool_calls"]]
    assert tools[0] == {"type": "function", "function": IN_CHAT}


async def test_anthropic_takes_back_uses_and_results(claude: Any, engine: FakeEngine, template: ToolTemplate) -> None:
    engine.reply = say(ANSWERS[0])
    given: Any = {"model": MODEL, "max_tokens": 190, "tools": [USED, {**CLOCK_USED, "type": "custom"}]}
    first = await claude.messages.create(messages=ASKED, **given)
    uses = [block for block in first.content if block.type == "tool_use"]
    results: Any = [
        {"type": "tool_result", "tool_use_id": uses[0].id, "content": [{"type": "text", "text": "sun"}]},
        {"type": "tool_result", "tool_use_id": uses[1].id, "is_error": True},
        {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
    ]
    again = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    engine.reply = say("It is sunny.")
    second = await claude.messages.create(messages=again, **given)
    assert second.content[0].text == "It is sunny."
    messages, tools = template.given[-1]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    own = messages[1]
    assert (own["reasoning_content"], own["content"]) == ("Hm.", "I look.")
    assert [call["function"]["name"] for call in own["tool_calls"]] == ["get_weather", "get_time"]
    assert [message["content"] for message in messages[2:]] == ["sun", "", "And?"]
    assert [call["id"] for call in own["tool_calls"]] == [message["tool_call_id"] for message in messages[2:4]]
    assert tools[0] == {"type": "function", "function": {**IN_CHAT, "strict": None}}
    counted = await claude.messages.count_tokens(model=MODEL, messages=again, tools=given["tools"])
    assert counted.input_tokens == second.usage.input_tokens


async def test_a_call_can_be_required_named_or_kept_out(
    gpt: openai.AsyncOpenAI, claude: Any, engine: FakeEngine, template: ToolTemplate
) -> None:
    engine.reply = say(CALL + TIME)
    responses: list[Any] = [
        await gpt.responses.create(model=MODEL, input="hi", tools=[FUNCTION, CLOCK], **more)
        for more in (
            {"tool_choice": "required"},
            {"tool_choice": {"type": "function", "name": "get_weather"}},
            {"tool_choice": "none"},
            {"parallel_tool_calls": False},
        )
    ]
    for choice in (
        {"type": "any"},
        {"type": "tool", "name": "get_weather"},
        {"type": "none"},
        {"type": "auto", "disable_parallel_tool_use": True},
    ):
        given: Any = {"model": MODEL, "max_tokens": 190, "messages": ASKED, "tools": [USED, CLOCK_USED]}
        responses.append(await claude.messages.create(tool_choice=choice, **given))
    asked = [request.params.structured_outputs for request in engine.added]
    for required, named, kept_out, single in (asked[:4], asked[4:]):
        assert required is not None and len(required.calls.ways) == 2
        assert named is not None and len(named.calls.ways) == 1
        assert kept_out is None and single is None
    assert [len(one.output) for one in responses[:4]] == [2, 1, 1, 1]
    assert [len(one.content) for one in responses[4:]] == [2, 1, 1, 1]
    assert template.given[2][1] is None


async def test_an_answer_cut_in_a_call_says_so(gpt: openai.AsyncOpenAI, claude: Any, engine: FakeEngine) -> None:
    engine.reply = say(CALL)
    response = await gpt.responses.create(model=MODEL, input="hi", tools=[FUNCTION], max_output_tokens=60)
    (item,) = response.output
    assert (response.status, item.type) == ("incomplete", "function_call")
    assert (item.status, item.arguments) == ("incomplete", '{"city": "O')
    message = await claude.messages.create(model=MODEL, max_tokens=60, messages=ASKED, tools=[USED])
    assert (message.stop_reason, message.content[0].type, message.content[0].input) == ("max_tokens", "tool_use", {})


async def test_anthropics_form_is_the_chats(claude: Any, engine: FakeEngine) -> None:
    engine.reply = say('{"city": "Oslo"}')
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = await claude.messages.create(
        model=MODEL,
        max_tokens=50,
        messages=ASKED,
        extra_body={"output_config": config, "thinking": {"type": "enabled"}},
    )
    assert json.loads(message.content[0].text) == {"city": "Oslo"}
    form = engine.added[0].params.structured_outputs
    assert form is not None and json.loads(str(form.json)) == SCHEMA


class City(pydantic.BaseModel):
    city: str


async def test_the_packages_own_helpers_work(gpt: openai.AsyncOpenAI, claude: Any, engine: FakeEngine) -> None:
    """Forms parsed into models by both, and a tool that Anthropic's runner calls by itself, thread or no thread."""
    engine.reply = say('{"city": "Oslo"}')
    response = await gpt.responses.parse(model=MODEL, input="hi", text_format=City)
    assert response.output_parsed == City(city="Oslo")
    given: Any = {"model": MODEL, "max_tokens": 190, "messages": ASKED}
    assert (await claude.messages.parse(output_format=City, **given)).parsed_output == City(city="Oslo")
    assert all(request.params.structured_outputs is not None for request in engine.added)
    engine.reply = say(CALL)

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """The weather of a city."""
        engine.reply = say(f"Sunny in {city}.")
        return "sun"

    message = await claude.beta.messages.tool_runner(tools=[get_weather], **given).until_done()
    assert message.content[0].text == "Sunny in Oslo."

"""Other APIs' shapes over the same core: the real anthropic and openai packages, streamed and not, and what is
refused."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import EOS, FakeEngine, endless, say
from tests.server.serving import MODEL, http, refusal

from headrace.server.api_keys import Caller

anthropic = pytest.importorskip("anthropic")
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
JSON = {"content-type": "application/json"}
USED = {"name": "f", "input_schema": {"type": "object"}}
ASKED = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def claude(port: int) -> AsyncIterator[Any]:
    url = f"http://127.0.0.1:{port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def gpt(port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_anthropic_has_its_message(claude: Any, engine: FakeEngine) -> None:
    engine.cached_tokens = 4
    message = await claude.messages.create(model=MODEL, max_tokens=50, system="Be brief.", messages=ASKED)
    assert message.content[0].text == "Hello, world!"
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    prompt = b"system:Be brief.\nuser:hi\nassistant:"
    assert bytes(engine.added[0].prompt_ids) == prompt
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (len(prompt) - 4, 4)
    assert message.usage.output_tokens == 14


async def test_anthropic_streams_the_same(claude: Any, engine: FakeEngine) -> None:
    for reply, stop, reason in (("안녕 👍", None, "end_turn"), ("so STOP", "STOP", "stop_sequence")):
        engine.reply = say(reply)
        given: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": ASKED}
        given |= {"stop_sequences": [stop]} if stop else {}
        whole = await claude.messages.create(**given)
        async with claude.messages.stream(**given) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == final.content[0].text == whole.content[0].text == reply.removesuffix("STOP")
        assert final.stop_reason == whole.stop_reason == reason
        assert final.stop_sequence == whole.stop_sequence == stop
        assert final.usage.output_tokens == whole.usage.output_tokens


async def test_anthropic_parts_prefill_and_limits(claude: Any, engine: FakeEngine) -> None:
    engine.reply = endless
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "I say"},
    ]
    message = await claude.messages.create(
        model=MODEL, max_tokens=3, messages=messages, extra_body={"temperature": 0.5, "top_k": 5}
    )
    assert (message.content[0].text, message.stop_reason) == ("abc", "max_tokens")
    assert bytes(engine.added[0].prompt_ids) == b"user:a\nb\nassistant:I say"
    assert (engine.added[0].params.temperature, engine.added[0].params.top_k) == (0.5, 5)


async def test_anthropic_errors_are_its_own(claude: Any, engine: FakeEngine) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await claude.messages.create(model=MODEL, max_tokens=5, messages=ASKED, extra_body={"temperature": 9})
    with pytest.raises(anthropic.NotFoundError):
        await claude.messages.create(model="other", max_tokens=5, messages=ASKED)
    engine.fail_at = 2
    with pytest.raises(anthropic.APIStatusError, match="not finite"):
        async with claude.messages.stream(model=MODEL, max_tokens=50, messages=ASKED) as stream:
            await stream.get_final_message()


async def test_responses_have_their_shape(gpt: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.cached_tokens = 2
    response = await gpt.responses.create(model=MODEL, instructions="Be brief.", input="hi")
    assert response.output_text == "Hello, world!"
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert bytes(engine.added[0].prompt_ids) == b"system:Be brief.\nuser:hi\nassistant:"
    assert response.usage is not None
    assert (response.usage.output_tokens, response.usage.input_tokens_details.cached_tokens) == (14, 2)


async def test_responses_stream_their_events(gpt: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply = lambda request: [*"안녕".encode(), EOS]
    conversation: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}], "type": "message"},
        {"role": "user", "content": "c"},
    ]
    events = [e async for e in await gpt.responses.create(model=MODEL, input=conversation, stream=True)]
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "안녕"
    assert events[-1].response.output_text == "안녕"
    assert bytes(engine.added[0].prompt_ids) == b"user:a\nassistant:b\nuser:c\nassistant:"
    async with gpt.responses.stream(model=MODEL, input="hi") as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_text == "안녕"


async def test_a_response_that_is_cut_is_incomplete(gpt: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply = endless
    response = await gpt.responses.create(model=MODEL, input="hi", max_output_tokens=3)
    assert (response.output_text, response.status) == ("abc", "incomplete")
    assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.BadRequestError, match="nothing is kept"):
        await gpt.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    engine.fail_at = 1
    events = [e async for e in await gpt.responses.create(model=MODEL, input="hi", stream=True)]
    assert events[-1].type == "error" and "not finite" in events[-1].message


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (MESSAGES, {"messages": ASKED}, "max_tokens"),
        (MESSAGES, {"messages": ASKED, "max_tokens": 0}, "max_tokens"),
        (MESSAGES, {"max_tokens": 5}, "messages"),
        (MESSAGES, {"max_tokens": 5, "messages": [], "system": "x"}, "messages"),
        (MESSAGES, {"max_tokens": 5, "messages": [{"role": "system", "content": "x"}]}, "messages[0]"),
        (MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0]"),
        (MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": []}]}, "messages[0]"),
        (MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0]"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "thinking": {"type": "enabled"}}, "thinking.type"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "tools": [{"name": "x"}]}, "tools[0].input_schema"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "tools": [{"type": "bash_20250124", "name": "b"}]}, "tools[0]"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "tools": [{**USED, "cost": 1}]}, "tools[0]"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "tools": [USED]}, "tools"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "tools": [USED], "tool_choice": {"type": "x"}}, "tool_choice"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "output_config": {"format": {"type": "x"}}}, "output_config"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "stop_sequences": [""]}, "stop_sequences"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "system": 5}, "system"),
        (MESSAGES, {"max_tokens": 5, "messages": ASKED, "unheard_of": 1}, "unheard_of"),
        (RESPONSES, {}, "input"),
        (RESPONSES, {"input": ""}, "input"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": [5]}, "input[0]"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        (RESPONSES, {"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
        (RESPONSES, {"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        (RESPONSES, {"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]"),
        (RESPONSES, {"input": "x", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        (RESPONSES, {"input": "x", "tools": [{"type": "function", "name": "f", "x": 1}]}, "tools[0]"),
        (RESPONSES, {"input": "x", "tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"input": "x", "tool_choice": {"type": "web_search"}}, "tool_choice"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        (RESPONSES, {"input": "x", "store": True}, "store"),
        (RESPONSES, {"input": "x", "background": True}, "background"),
        (RESPONSES, {"input": "x", "truncation": "auto"}, "truncation"),
        (RESPONSES, {"input": "x", "include": ["y"]}, "include"),
        (RESPONSES, {"input": "x", "reasoning": {"effort": "high"}}, "reasoning"),
        (RESPONSES, {"input": "x", "text": {"verbosity": "low"}}, "text"),
        (RESPONSES, {"input": "x", "text": {"format": 5}}, "text"),
        (RESPONSES, {"input": "x", "max_output_tokens": -1}, "max_output_tokens"),
        (RESPONSES, {"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ],
)
async def test_what_is_not_theirs_is_refused_by_name(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        response = await client.post(path, json={**body, "stream": stream})
        if path == RESPONSES:
            error = refusal(response)
            assert param.startswith(error["param"]) or error["param"].startswith(param)
        else:
            assert response.status_code == 400
            assert response.json()["type"] == "error"
            error = response.json()["error"]
            assert error["type"] == "invalid_request_error"
        assert re.search(rf"(^|\W){re.escape(param)}", error["message"]), error
    assert engine.added == []


async def test_errors_of_every_kind_have_anthropics_shape(make_app: Callable[..., Starlette]) -> None:
    app = make_app(api_keys=(("secret", Caller("one", True)),))
    app.state.service.drain()
    kinds = []
    async with http(app) as client:
        for content, headers in (
            (b"{}", {}),
            (b"[", {"x-api-key": "secret"}),
            (b"x", {"x-api-key": "secret", "content-type": "text/plain"}),
        ):
            response = await client.post(MESSAGES + "/count_tokens", content=content, headers=JSON | headers)
            assert set(response.json()) == {"type", "error"}
            kinds.append((response.status_code, response.json()["error"]["type"]))
        response = await client.post(MESSAGES, json={}, headers={"x-api-key": "secret"})
        kinds.append((response.status_code, response.json()["error"]["type"]))
        response = await client.get(MESSAGES, headers={"x-api-key": "secret"})
        kinds.append((response.status_code, response.json()["error"]["type"]))
    assert kinds == [
        (401, "authentication_error"),
        (400, "invalid_request_error"),
        (415, "invalid_request_error"),
        (503, "overloaded_error"),
        (405, "invalid_request_error"),
    ]


async def test_tokens_of_a_message_are_counted(claude: Any, engine: FakeEngine) -> None:
    counted = await claude.messages.count_tokens(model=MODEL, system="Be brief.", messages=ASKED)
    assert counted.input_tokens == len(b"system:Be brief.\nuser:hi\nassistant:")
    assert engine.added == []


async def test_what_asks_for_nothing_is_accepted(client: httpx.AsyncClient) -> None:
    more: dict[str, Any] = {"tools": [], "metadata": {"user_id": "x"}, "service_tier": "auto"}
    body = {"max_tokens": 5, "messages": ASKED, "thinking": {"type": "disabled"}, **more}
    assert (await client.post(MESSAGES, json=body)).status_code == 200
    body = {
        "input": "x",
        "store": False,
        "truncation": "disabled",
        "include": [],
        "reasoning": {"effort": None},
        **more,
    }
    assert (await client.post(RESPONSES, json={**body, "text": {"format": {"type": "text"}}})).status_code == 200

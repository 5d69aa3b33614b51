"""Chat completions through the front door, over an engine that says what it was told to."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.server.fake_engine import CONTEXT, EOS, WORD, FakeEngine, endless, say
from tests.server.serving import CHAT, MODEL, events, refusal, user

from headrace.core.errors import OverloadedError, RequestError


async def text_both_ways(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """The answer's text, after checking that the streamed one is equal."""
    whole = await client.post(CHAT, json=body)
    assert whole.status_code == 200, whole.text
    choice = whole.json()["choices"][0]
    chunks = events((await client.post(CHAT, json={**body, "stream": True})).text)
    streamed = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert streamed == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
    return streamed


async def test_answer_has_openai_shape(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.cached_tokens = 3
    answer = (await client.post(CHAT, json=user("hi"))).json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["created"] > 1_700_000_000
    del answer["id"], answer["created"]
    prompt_tokens = len("user:hi\nassistant:")
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello, world!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 14,
            "total_tokens": prompt_tokens + 14,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
        "system_fingerprint": "fp-test",
    }


async def test_stream_begins_with_the_role_and_ends_with_a_reason(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json=user("hi", stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    assert all("usage" not in c for c in chunks)
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


async def test_usage_comes_in_a_last_chunk_when_asked(client: httpx.AsyncClient) -> None:
    body = user("hi", stream=True, stream_options={"include_usage": True})
    chunks = events((await client.post(CHAT, json=body)).text)
    assert [c["usage"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 14
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("per_delta", [1, 2, 3, 7])
@pytest.mark.parametrize("text", ["안녕하세요 세계", "你好，世界。", "👩‍👩‍👧‍👦 and 🇰🇷!", "naïve café"])
async def test_streams_whole_characters(
    client: httpx.AsyncClient, engine: FakeEngine, text: str, per_delta: int
) -> None:
    engine.reply, engine.per_delta = say(text), per_delta
    assert await text_both_ways(client, user("hi")) == text


async def test_limit_inside_a_character_is_valid_utf8(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("ok 👍")
    assert (await text_both_ways(client, user("hi", max_tokens=5))).startswith("ok ")


@pytest.mark.parametrize("per_delta", [1, 2, 5])
@pytest.mark.parametrize(
    ("reply", "stop", "expected"),
    [
        ("one two STOP three", "STOP", "one two "),
        ("one two STOP three", ["xyz", "o S"], "one tw"),
        ("a ST b STO c STOP d", "STOP", "a ST b STO c "),
        ("SSTOP", "STOP", "S"),
        ("never", "STOP", "never"),
        ("ends in ST", "STOP", "ends in ST"),
        ("끝입니다 그만 하자", "그만", "끝입니다 "),
    ],
)
async def test_stop_strings_never_leak(
    client: httpx.AsyncClient, engine: FakeEngine, reply: str, stop: Any, expected: str, per_delta: int
) -> None:
    engine.reply, engine.per_delta = say(reply), per_delta
    assert await text_both_ways(client, user("hi", stop=stop)) == expected


async def test_stop_inside_a_token_cuts_it_and_ends_the_engine_request(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.reply = lambda request: [*b"so ", WORD, *b" and on and on"]
    answer = (await client.post(CHAT, json=user("hi", stop="END"))).json()
    assert answer["choices"][0]["message"]["content"] == "so hello "
    assert answer["choices"][0]["stop_reason"] == "END"
    assert answer["usage"]["completion_tokens"] == 4
    assert engine.aborted == [engine.added[0].request_id]
    assert not engine.live


async def test_stop_token_is_the_reason_and_leaves_the_text(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("ab.cd")
    choice = (await client.post(CHAT, json=user("hi", stop_token_ids=[ord(".")]))).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", 46)


async def test_choices_come_in_order_and_share_the_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = lambda request: [*f"choice {request.choice}".encode(), EOS]
    answer = (await client.post(CHAT, json=user("hi", n=3))).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in answer["choices"]] == ["choice 0", "choice 1", "choice 2"]
    assert answer["usage"]["prompt_tokens"] == len("user:hi\nassistant:")
    assert answer["usage"]["completion_tokens"] == 27
    assert len({r.seed for r in engine.added}) == 1


async def test_streamed_choices_each_have_role_text_and_end(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = lambda request: [*f"choice {request.choice}".encode(), EOS]
    chunks = [c["choices"][0] for c in events((await client.post(CHAT, json=user("hi", n=3, stream=True))).text)]
    for index in range(3):
        own = [c for c in chunks if c["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(c["delta"].get("content", "") for c in own) == f"choice {index}"
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["stop"]


async def test_logprobs_have_every_token_streamed_or_not(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("é!")
    body = user("hi", logprobs=True, top_logprobs=2)
    content = (await client.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in content] == ["bytes:\\xc3", "bytes:\\xa9", "!", "<eos>"]
    assert content[2] == {
        "token": "!",
        "logprob": -0.5,
        "bytes": [33],
        "top_logprobs": [
            {"token": "!", "logprob": -0.5, "bytes": [33]},
            {"token": '"', "logprob": -1.5, "bytes": [34]},
        ],
    }
    chunks = events((await client.post(CHAT, json={**body, "stream": True})).text)
    per_chunk = [c["choices"][0]["logprobs"] for c in chunks]
    assert [t for p in per_chunk if p for t in p["content"]] == content


async def test_logprobs_without_alternatives(client: httpx.AsyncClient) -> None:
    content = (await client.post(CHAT, json=user("hi", logprobs=True))).json()["choices"][0]["logprobs"]["content"]
    assert all(t["top_logprobs"] == [] for t in content)


async def test_no_max_tokens_means_the_rest_of_the_context(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = endless
    usage = (await client.post(CHAT, json=user("hi"))).json()["usage"]
    assert usage["total_tokens"] == CONTEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_no_tokens_asked_for_is_an_empty_answer(client: httpx.AsyncClient, stream: bool) -> None:
    response = await client.post(CHAT, json=user("hi", max_tokens=0, stream=stream))
    choice = events(response.text)[-1]["choices"][0] if stream else response.json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert not choice.get("delta", {}).get("content")
    assert not choice.get("message", {}).get("content")


async def test_messages_reach_the_template_with_parts_joined(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "content": "d", "name": "Ada"},
    ]
    assert (await client.post(CHAT, json={"messages": messages})).status_code == 200
    assert bytes(engine.added[0].prompt_ids) == b"system:Be brief.\nuser:a\nb\nassistant:c\nuser:d\nassistant:"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (None, "at least one"),
        ([], "at least one"),
        ("hi", "messages"),
        ([None], "messages[0]"),
        ([{"role": "user", "content": "hi"}] * 50_000, "messages"),
        ([{"role": "user", "content": ["x" * 5000] * 50}], "messages[0].content[0]"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "wizard", "content": "hi"}], "system, developer, user, assistant"),
        ([{"role": "tool", "content": "hi"}], "tool_call_id"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "image_url"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "input_audio"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "hi", "contents": "x"}], "did you mean content"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}], "tool_calls"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "alternate"),
        ([{"role": "user", "content": "x" * CONTEXT}], f"context is {CONTEXT}"),
    ],
)
async def test_bad_conversations_are_refused(
    client: httpx.AsyncClient, engine: FakeEngine, messages: Any, said: str
) -> None:
    for stream in (False, True):
        response = await client.post(CHAT, json={"messages": messages, "stream": stream})
        error = refusal(response)
        assert said in error["message"]
        assert error["param"].startswith("messages")
    assert engine.added == []


async def test_engine_refusals_come_before_headers(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refuse = lambda request: RequestError("it can never fit", param="max_tokens")
    for stream in (False, True):
        assert refusal(await client.post(CHAT, json=user("hi", stream=stream)))["param"] == "max_tokens"
    engine.refuse = lambda request: OverloadedError("1024 requests wait", retry_after=2.2)
    for stream in (False, True):
        response = await client.post(CHAT, json=user("hi", stream=stream))
        assert refusal(response, 429)["code"] == "overloaded"
        assert response.headers["retry-after"] == "3"


async def test_one_refused_choice_ends_the_others(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refuse = lambda request: OverloadedError("full", retry_after=1) if request.choice == 2 else None
    refusal(await client.post(CHAT, json=user("hi", n=4)), 429)
    assert not engine.live


async def test_failed_generation_is_an_error_not_text(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_at = 3
    assert "not finite" in refusal(await client.post(CHAT, json=user("hi")), 500)["message"]
    chunks = events((await client.post(CHAT, json=user("hi", stream=True))).text)
    assert chunks[-1]["error"]["type"] == "server_error"
    engine.fail_at = None
    assert (await client.post(CHAT, json=user("hi"))).status_code == 200


async def test_dead_engine_is_503_and_tells_nothing_of_it(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.dead = True
    error = refusal(await client.post(CHAT, json=user("hi")), 503)
    assert "4242" not in error["message"]


async def test_both_limits_must_agree(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = endless
    assert (
        refusal(await client.post(CHAT, json=user("hi", max_tokens=3, max_completion_tokens=4)))["param"]
        == "max_tokens"
    )
    error = refusal(await client.post(CHAT, json=user("hi", max_completion_tokens=-1)))
    assert error["param"] == "max_completion_tokens"
    assert error["message"].startswith("max_completion_tokens must be")
    answer = (await client.post(CHAT, json=user("hi", max_completion_tokens=4))).json()
    assert answer["usage"]["completion_tokens"] == 4


async def test_last_message_can_be_continued(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer"}]
    body = {"messages": messages, "continue_final_message": True}
    assert (await client.post(CHAT, json=body)).status_code == 200
    assert bytes(engine.added[0].prompt_ids) == b"user:q\nassistant:The answer"

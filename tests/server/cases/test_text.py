"""Public faults 25 to 33 and their neighbours: what a stream says is what the whole answer says, in whole characters,
with nothing of a stop string, and it ends as clients expect.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from tests.server.fake_engine import EOS, ByteTokenizer, FakeEngine, PlainTemplate, say
from tests.server.local_engine import LocalEngine, app_over
from tests.server.serving import CHAT, COMPLETIONS, events, http, served, user
from tests.server.serving import settings as server_settings

from headrace.server.app import create_app

SCRIPTS = ["한국어 안녕하세요", "中文你好世界", "👩‍👩‍👧‍👦🇰🇷🏳️‍🌈", "naïve e\u0301 \u200b\u202e", "\U0010ffff\u0000\x7f"]


async def both(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Texts of the choices, whole and streamed alike, and the stream's chunks."""
    whole = (await client.post(path, json=body)).json()["choices"]
    chunks = events((await client.post(path, json={**body, "stream": True})).text)
    texts = [c["text"] if path == COMPLETIONS else c["message"]["content"] for c in whole]
    parts = [c["choices"][0] for c in chunks if c["choices"]]
    for index, text in enumerate(texts):
        own = [c for c in parts if c["index"] == index]
        pieces = [c["text"] if path == COMPLETIONS else c["delta"].get("content", "") for c in own]
        assert "".join(pieces) == text
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [whole[index]["finish_reason"]]
    return texts, chunks


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("per_delta", [1, 2, 3, 5])
@pytest.mark.parametrize("text", SCRIPTS)
async def test_case_25_every_script_is_streamed_in_whole_characters(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, per_delta: int, text: str
) -> None:
    engine.reply, engine.per_delta = say(text), per_delta
    body = user("hi") if path == CHAT else {"prompt": "hi", "max_tokens": 100}
    texts, chunks = await both(client, path, body)
    assert texts == [text]
    assert "\ufffd" not in json.dumps(chunks, ensure_ascii=False)


@pytest.mark.parametrize("most", range(1, 9))
async def test_case_26_a_limit_in_the_middle_of_an_emoji(
    client: httpx.AsyncClient, engine: FakeEngine, most: int
) -> None:
    engine.reply = say("👍👍")
    texts, _ = await both(client, CHAT, user("hi", max_tokens=most))
    assert texts[0].replace("\ufffd", "") == "👍" * (most // 4)
    assert len(texts[0]) == -(-most // 4)


@given(tokens=st.lists(st.integers(0, EOS), max_size=30), per_delta=st.integers(1, 4))
@settings(max_examples=60)
def test_case_27_any_bytes_are_survived(tokens: list[int], per_delta: int) -> None:
    async def run() -> None:
        engine = FakeEngine()
        engine.reply, engine.per_delta = lambda request: [*tokens, EOS], per_delta
        async with http(create_app(engine, ByteTokenizer(), PlainTemplate(), server_settings())) as client:
            await both(client, CHAT, user("hi", logprobs=True, top_logprobs=3))
            assert (await client.get("/health")).status_code == 200

    asyncio.run(run())


@given(
    text=st.text("abAB é한", max_size=20),
    stop=st.lists(st.text("abAB é한", min_size=1, max_size=4), min_size=1, max_size=3),
    per_delta=st.integers(1, 7),
    keep=st.booleans(),
)
@settings(max_examples=150)
def test_cases_28_29_no_part_of_a_stop_string_leaks_and_nothing_before_it_is_lost(
    text: str, stop: list[str], per_delta: int, keep: bool
) -> None:
    ends = [(text.find(s) + len(s), -len(s), s) for s in stop if s in text]
    first = min(ends, default=None)
    expected = text if first is None else text[: first[0] if keep else first[0] + first[1]]

    async def run() -> None:
        engine = FakeEngine()
        engine.reply, engine.per_delta = say(text), per_delta
        async with http(create_app(engine, ByteTokenizer(), PlainTemplate(), server_settings())) as client:
            body = {"prompt": "x", "max_tokens": 100, "stop": stop, "include_stop_str_in_output": keep}
            texts, chunks = await both(client, COMPLETIONS, body)
            assert texts == [expected]
            assert chunks[-1]["choices"][0]["stop_reason"] == (None if first is None else first[2])

    asyncio.run(run())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("more", [{}, {"n": 2}, {"max_tokens": 0}, {"stop": "l"}, {"max_tokens": 2}], ids=str)
async def test_case_30_every_stream_ends_in_a_reason_done_and_a_closed_socket(
    app: Starlette, path: str, more: dict[str, Any]
) -> None:
    async with served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({**(user("hi") if path == CHAT else {"prompt": "hi"}), "stream": True, **more}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.read()).decode()
        assert answer.endswith("data: [DONE]\n\n\r\n0\r\n\r\n")
        chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
        assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
        assert all("finish_reason" in c["choices"][0] for c in chunks)
        writer.close()


async def test_case_31_answers_come_in_the_order_of_prompts(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = lambda request: [*bytes(request.prompt_ids) * 2, EOS]
    texts, _ = await both(client, COMPLETIONS, {"prompt": ["A", "BB", "C"], "logprobs": 1})
    assert texts == ["AA", "BBBB", "CC"]
    choices = (await client.post(COMPLETIONS, json={"prompt": ["A", "BB"], "logprobs": 1})).json()["choices"]
    assert [len(c["logprobs"]["tokens"]) for c in choices] == [3, 5]


@pytest.mark.parametrize("per_delta", [1, 3])
async def test_case_32_streamed_alternatives_come_per_token(
    client: httpx.AsyncClient, engine: FakeEngine, per_delta: int
) -> None:
    engine.reply, engine.per_delta = say("ab|cdef"), per_delta
    body = user("hi", logprobs=True, top_logprobs=3, stop="|", stream=True)
    chunks = [c["choices"][0] for c in events((await client.post(CHAT, json=body)).text)]
    content = [t for c in chunks for t in (c["logprobs"] or {"content": []})["content"]]
    assert [t["token"] for t in content] == ["a", "b", "|"]
    assert all(len(t["top_logprobs"]) == 3 for t in content)


async def test_case_33_usage_counts_the_prompt_once_and_says_what_was_cached() -> None:
    async with app_over(LocalEngine()) as app, http(app) as client:
        prompt = "x" * 40
        body = {"prompt": prompt, "n": 3, "max_tokens": 4, "temperature": 1, "ignore_eos": True}
        usage = (await client.post(COMPLETIONS, json=body)).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (40, 12, 52)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        again = (await client.post(COMPLETIONS, json=body)).json()["usage"]
        assert 32 <= again["prompt_tokens_details"]["cached_tokens"] < 40
        for options, counted in (({}, 0), ({"stream_options": {"include_usage": True}}, 1)):
            chunks = events((await client.post(COMPLETIONS, json={**body, "stream": True, **options})).text)
            assert sum(bool(c.get("usage")) for c in chunks) == counted
            if counted:
                assert chunks[-1]["usage"] == {
                    **again,
                    "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"],
                }


@pytest.fixture
async def client(make_app: Callable[..., Starlette]) -> AsyncIterator[httpx.AsyncClient]:
    async with http(make_app()) as client:
        yield client

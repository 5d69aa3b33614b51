"""The openai package, async and sync, against the server on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import FakeEngine, endless, say
from tests.server.serving import MODEL, eventually

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def aclient(port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_chat(aclient: openai.AsyncOpenAI) -> None:
    answer = await aclient.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content == "Hello, world!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "H"
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_streamed_chat(aclient: openai.AsyncOpenAI) -> None:
    stream = await aclient.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Hello, world!"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 14


async def test_completions(aclient: openai.AsyncOpenAI) -> None:
    answer = await aclient.completions.create(
        model=MODEL, prompt=["a", "b"], n=2, logprobs=2, echo=True, extra_body={"top_k": 5}
    )
    assert [c.text for c in answer.choices] == ["aHello, world!"] * 2 + ["bHello, world!"] * 2
    assert answer.choices[0].logprobs.tokens[0] == "a"


async def test_models(aclient: openai.AsyncOpenAI) -> None:
    assert [m.id async for m in aclient.models.list()] == [MODEL]
    assert (await aclient.models.retrieve(MODEL)).id == MODEL


async def test_refusals_become_the_packages_errors(aclient: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature must be from 0 to 2") as caught:
        await aclient.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await aclient.chat.completions.create(model="other", messages=MESSAGES)
    engine.fail_at = 2
    with pytest.raises(openai.APIError, match="not finite"):
        async for _ in await aclient.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            pass


async def test_leaving_a_stream_stops_the_engine(aclient: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply, engine.delay = endless, 0.01
    stream = await aclient.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await eventually(lambda: not engine.live)
    assert len(engine.aborted) == 1


async def test_the_sync_client(app: Starlette, port: int, engine: FakeEngine) -> None:
    engine.reply = say("안녕 👋")

    def talk() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    assert await asyncio.to_thread(talk) == ("안녕 👋", "안녕 👋")

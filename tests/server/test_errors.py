"""Whatever goes wrong, the client sees OpenAI's error object and nothing of the inside."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.server.fake_engine import FakeEngine
from tests.server.serving import CHAT, events, eventually, refusal, user

from headrace.core.errors import EngineError, ModelError
from headrace.server.errors import INTERNAL_MESSAGE
from headrace.server.generation import ABORTED_MESSAGE


@pytest.mark.parametrize(
    "error", [RuntimeError("/home/secret"), EngineError("slot 5 of /home/secret"), ModelError("/home/secret.gguf")]
)
async def test_our_faults_are_told_as_ours(client: httpx.AsyncClient, engine: FakeEngine, error: Exception) -> None:
    engine.refuse = lambda request: error
    for stream in (False, True):
        shown = refusal(await client.post(CHAT, json=user("hi", stream=stream)), 500)
        assert shown == {"message": INTERNAL_MESSAGE, "type": "server_error", "param": None, "code": "internal_error"}


async def test_a_fault_in_mid_stream_is_told_in_the_stream(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = lambda request: [72, 5_000, 72]
    chunks = events((await client.post(CHAT, json=user("hi", stream=True))).text)
    assert chunks[-1]["error"]["message"] == INTERNAL_MESSAGE
    assert not engine.live


async def test_what_the_server_aborts_is_no_answer(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.delay = 0.005

    async def abort() -> None:
        await eventually(lambda: engine.produced > 2)
        await engine.abort([engine.added[0].request_id])

    response, _ = await asyncio.gather(client.post(CHAT, json=user("hi")), abort())
    assert refusal(response, 500)["message"] == ABORTED_MESSAGE


async def test_unknown_paths_and_methods(client: httpx.AsyncClient) -> None:
    error = refusal(await client.get("/v1/engines"), 404)
    assert "/v1/engines" in error["message"]
    assert "/v1/completions" in error["message"]
    response = await client.get(CHAT)
    assert "GET" in refusal(response, 405)["message"]
    assert response.headers["allow"] == "POST"

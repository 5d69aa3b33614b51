"""/health tells of progress, draining turns new work away, /version says what runs."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import FakeEngine, endless
from tests.server.serving import CHAT, events, eventually, refusal, user

from headrace.engine.client_protocol import Health, HealthState


async def test_health_follows_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await client.get("/health")).json() == {"status": "healthy"}
    for state in (HealthState.DEGRADED, HealthState.DEAD):
        engine.state = Health(state, "no step for 12 s")
        error = refusal(await client.get("/health"), 503)
        assert (error["code"], error["message"]) == (state.value, "no step for 12 s")
    engine.state = Health(HealthState.HEALTHY)
    assert (await client.get("/health")).status_code == 200


async def test_version(client: httpx.AsyncClient) -> None:
    shown = (await client.get("/version")).json()
    assert shown == {"version": "1.2.3", "fingerprint": "fp-test", "engine": {"model": "fake"}}


async def test_draining_lets_streams_finish_and_refuses_new_ones(
    app: Starlette, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.delay = 0.01
    service = app.state.service
    stream = asyncio.create_task(client.post(CHAT, json=user("hi", stream=True)))
    await eventually(lambda: engine.produced > 2)
    service.drain()
    response = await client.post(CHAT, json=user("hi"))
    assert refusal(response, 503)["code"] == "shutting_down"
    assert "retry-after" in response.headers
    assert refusal(await client.get("/health"), 503)["code"] == "shutting_down"
    waiting = asyncio.create_task(service.drained())
    await asyncio.sleep(0)
    assert not waiting.done()
    chunks = events((await stream).text)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    await waiting
    assert service.live == 0


async def test_drained_at_once_without_work(app: Starlette) -> None:
    app.state.service.drain()
    await app.state.service.drained()


@pytest.mark.parametrize("n", [1, 3])
async def test_streams_that_do_not_finish_are_ended_with_an_error(
    app: Starlette, client: httpx.AsyncClient, engine: FakeEngine, n: int
) -> None:
    engine.reply, engine.delay = endless, 0.01
    stream = asyncio.create_task(client.post(CHAT, json=user("hi", stream=True, n=n)))
    await eventually(lambda: engine.produced > 2 * n)
    app.state.service.drain()
    await app.state.service.end_live()
    await app.state.service.drained()
    assert events((await stream).text)[-1]["error"]["type"] == "server_error"
    assert not engine.live

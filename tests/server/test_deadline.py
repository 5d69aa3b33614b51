"""Deadlines from the header or the body reach the engine, and what comes of them has a status of its own."""

from __future__ import annotations

import httpx
import pytest
from tests.server.fake_engine import FakeEngine
from tests.server.serving import CHAT, COMPLETIONS, events, refusal, user

from headrace.core.errors import OverloadedError
from headrace.core.request import ErrorCode, FinishReason, OutputDelta

HEADER = "X-Request-Deadline-Ms"


@pytest.mark.parametrize(("header", "fields"), [({HEADER: "2000"}, {}), ({}, {"deadline_ms": 2000})])
async def test_header_and_field_reach_the_engine(client: httpx.AsyncClient, engine: FakeEngine, header, fields) -> None:
    await client.post(CHAT, json=user("hi", **fields), headers=header)
    await client.post(COMPLETIONS, json={"prompt": ["a", "b"], **fields}, headers=header)
    assert len(engine.added) == 3
    # Some of it was spent on the way.
    assert all(added.deadline is not None and 0 < added.deadline <= 2.0 for added in engine.added)


async def test_without_one_there_is_none(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await client.post(CHAT, json=user("hi"))
    assert engine.added[0].deadline is None


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "soon", "", "9" * 40, "²"])
async def test_a_header_that_is_no_time_is_refused(client: httpx.AsyncClient, value: str) -> None:
    error = refusal(await client.post(CHAT, json=user("hi"), headers={HEADER: value.encode()}))
    assert error["param"] == HEADER.lower()


@pytest.mark.parametrize(("fields", "header"), [({"deadline_ms": 0}, {}), ({"deadline_ms": 5}, {HEADER: "5"})])
async def test_a_field_that_is_no_time_or_said_twice_is_refused(client: httpx.AsyncClient, fields, header) -> None:
    error = refusal(await client.post(COMPLETIONS, json={"prompt": "a", **fields}, headers=header))
    assert error["param"] == "deadline_ms"


async def test_a_predicted_wait_beyond_it_is_429(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refuse = lambda request: OverloadedError("too long", retry_after=4.2, code="deadline_exceeded")
    response = await client.post(CHAT, json=user("hi", deadline_ms=5, stream=True))
    assert refusal(response, 429)["code"] == "deadline_exceeded"
    assert response.headers["retry-after"] == "5"


async def test_one_that_passes_in_the_queue_is_504_or_the_last_event(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(request):
        yield OutputDelta(
            request.request_id, finish_reason=FinishReason.ERROR, error="late", code=ErrorCode.DEADLINE_EXCEEDED
        )

    monkeypatch.setattr(engine, "_deltas", late)
    assert refusal(await client.post(CHAT, json=user("hi", deadline_ms=5)), 504)["code"] == "deadline_exceeded"
    streamed = await client.post(CHAT, json=user("hi", deadline_ms=5, stream=True))
    assert events(streamed.text)[-1]["error"]["code"] == "deadline_exceeded"

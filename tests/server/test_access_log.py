"""One line for each request: what it cost and how it ended, and nothing that was said."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import FakeEngine
from tests.server.serving import CHAT, COMPLETIONS, http, user

from headrace.server.api_keys import Caller

KEYS = (("k", Caller("alice")),)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.message) for record in caplog.records if record.name == "headrace.access"]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.access")


async def test_a_line_says_who_asked_what_it_cost_and_how_it_ended(
    make_app: Callable[..., Starlette], engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.cached_tokens = 2
    headers = {"X-Request-Id": "mine", "X-Api-Key": "k"}
    async with http(make_app(access_log=True, api_keys=KEYS)) as client:
        answer = await client.post(CHAT, json=user("a secret", n=2), headers=headers)
        await client.post(COMPLETIONS, json={"prompt": "secret", "stream": True, "max_tokens": 2}, headers=headers)
    chat, text = lines(caplog)
    assert chat["id"] == answer.json()["id"]
    assert chat["request_id"] == text["request_id"] == "mine"
    assert (chat["tenant"], chat["method"], chat["path"], chat["status"]) == ("alice", "POST", CHAT, 200)
    usage = answer.json()["usage"]
    assert chat["prompt_tokens"] == usage["prompt_tokens"]
    assert (chat["cached_tokens"], chat["completion_tokens"]) == (2, 28)
    assert chat["finish_reasons"] == ["stop", "stop"]
    assert text["finish_reasons"] == ["length"]
    assert 0 <= chat["ttft_ms"] <= chat["ms"]
    assert engine.added[0].request_id.startswith(chat["id"])
    assert "secret" not in caplog.text and "Hello" not in caplog.text


async def test_what_never_reached_the_engine_has_a_line_too(
    make_app: Callable[..., Starlette], engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with http(make_app(access_log=True, api_keys=KEYS)) as client:
        await client.get("/health")
        await client.post(CHAT, json=user("a secret"), headers={"X-Api-Key": "wrong"})
        await client.post(CHAT, json=user("a secret", n=0), headers={"X-Api-Key": "k"})
        await client.get("/nowhere%0A" + "x" * 500, headers={"X-Api-Key": "k"})
    seen = lines(caplog)
    assert [line["status"] for line in seen] == [200, 401, 400, 404]
    assert all(line["request_id"] for line in seen)
    assert all(len(line["path"]) <= 256 for line in seen)
    assert "secret" not in caplog.text and "wrong" not in caplog.text


async def test_a_fault_of_ours_is_500_in_the_log(
    make_app: Callable[..., Starlette], engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refuse = lambda request: ZeroDivisionError()
    async with http(make_app(access_log=True)) as client:
        assert (await client.post(CHAT, json=user("hi"))).status_code == 500
    assert [line["status"] for line in lines(caplog)] == [500]


async def test_without_being_asked_nothing_is_logged(
    make_app: Callable[..., Starlette], caplog: pytest.LogCaptureFixture
) -> None:
    async with http(make_app()) as client:
        await client.get("/health")
    assert lines(caplog) == []

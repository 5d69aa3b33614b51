"""The debug routes: what is remembered of requests and steps, and who may see it."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import FakeEngine
from tests.server.serving import http, refusal

from headrace.policy.records import RequestRecord, StepRecord
from headrace.server.admin import create_admin_app

LOCAL = {"host": "127.0.0.1:8000"}


def record(request_id: str, **fields: object) -> RequestRecord:
    return RequestRecord(request_id, "running", "alice", 0, None, 12, 5, **fields)  # type: ignore[arg-type]


def step(number: int) -> StepRecord:
    return StepRecord(number, 1.0, 2, 3, 4, 0, 0, 2, 1, None, "next")


@pytest.fixture
async def admin(app: Starlette):
    async with http(create_admin_app(app.state.service)) as client:
        yield client


async def test_a_request_in_sentences_and_numbers(admin: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.records = [record("chatcmpl-1-0", age_s=2.0), record("chatcmpl-1-1"), record("chatcmpl-2-0")]
    answer = await admin.get("/debug/requests/chatcmpl-1", headers=LOCAL)
    first, second = answer.json()["requests"]
    assert first["record"]["tenant"] == "alice"
    assert first["explanation"][0] == "It is running, 2.0 s after its arrival: 12 prompt tokens."
    assert second["record"]["request_id"] == "chatcmpl-1-1"


async def test_an_unknown_request_is_404(admin: httpx.AsyncClient) -> None:
    error = refusal(await admin.get("/debug/requests/chatcmpl-9", headers=LOCAL), 404)
    assert error["code"] == "request_not_found"
    assert "started again" not in error["message"]


async def test_what_an_engine_that_was_started_again_forgot_is_said_to_be(
    admin: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.restarts = 2
    error = refusal(await admin.get("/debug/requests/chatcmpl-9", headers=LOCAL), 404)
    assert "the engine was started again 2 times since, and forgets what ended before" in error["message"]
    engine.records = [record("chatcmpl-1-0", replayed_tokens=7)]
    answer = await admin.get("/debug/requests/chatcmpl-1", headers=LOCAL)
    (told,) = answer.json()["requests"]
    assert told["explanation"][0].startswith("The engine was started again: of this request 7 tokens")


async def test_the_last_steps(admin: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.steps = [step(number) for number in range(100, 0, -1)]
    assert len((await admin.get("/debug/steps", headers=LOCAL)).json()["steps"]) == 64
    answer = (await admin.get("/debug/steps?limit=2", headers=LOCAL)).json()
    assert [s["step"] for s in answer["steps"]] == [100, 99]
    assert answer["steps"][0]["next"] == "next"


@pytest.mark.parametrize("limit", ["0", "-1", "many", "10001", "", "²"])
async def test_a_limit_that_is_none_is_refused(admin: httpx.AsyncClient, limit: str) -> None:
    assert refusal(await admin.get("/debug/steps", params={"limit": limit}, headers=LOCAL))["param"] == "limit"


@pytest.mark.parametrize("path", ["/debug/steps", "/debug/requests/x"])
async def test_pages_of_other_sites_are_refused(admin: httpx.AsyncClient, path: str) -> None:
    assert refusal(await admin.get(path, headers={"host": "evil.example"}), 403)["code"] == "wrong_host"
    for host in ("localhost:9000", "[::1]:9000", "127.0.0.1"):
        assert (await admin.get(path, headers={"host": host})).status_code != 403


async def test_a_dead_engine_is_503(admin: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.dead = True
    refusal(await admin.get("/debug/steps", headers=LOCAL), 503)


async def test_the_api_itself_has_none_of_them(client: httpx.AsyncClient) -> None:
    for path in ("/debug/steps", "/debug/requests/chatcmpl-1"):
        refusal(await client.get(path, headers=LOCAL), 404)


async def test_the_admin_app_has_metrics_health_and_nothing_that_generates(admin: httpx.AsyncClient) -> None:
    for path in ("/metrics", "/health", "/version"):
        assert (await admin.get(path)).status_code == 200
    refusal(await admin.post("/v1/completions", json={"prompt": "a"}), 404)
    refusal(await admin.post("/metrics"), 405)

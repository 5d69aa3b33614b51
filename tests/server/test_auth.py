"""The API key guards every path but /health."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import FakeEngine
from tests.server.serving import CHAT, COMPLETIONS, http, refusal, user

from headrace.core.errors import ConfigError
from headrace.server import api_keys
from headrace.server.api_keys import ApiKeys, Caller, read_keys, split_keys

PATHS = [
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/x"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
    ("GET", "/health/"),
    ("GET", "http://test//health"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer sekret-key"},
        {"Authorization": "Bearer secret-key2"},
        {"Authorization": "Basic secret-key"},
        {"Authorization": "secret-key"},
        {"Authorization": "Bearer schlüssel".encode()},
        {"X-Api-Key": "wrong"},
        {"X-Api-Key": ""},
        {"X-Api-Key": "secret-key", "Authorization": "Bearer secret-key"},
    ],
)
async def test_without_the_key_nothing_is_told(
    make_app: Callable[..., Starlette], method: str, path: str, headers: dict[str, str]
) -> None:
    async with http(make_app(api_keys=split_keys("secret-key"))) as client:
        response = await client.request(method, path, headers=headers)
        assert refusal(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


async def test_two_authorization_headers_are_none(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_keys=split_keys("k"))) as client:
        response = await client.get("/version", headers=[("Authorization", "Bearer k"), ("Authorization", "Bearer x")])
        refusal(response, 401)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_with_the_key_all_is_open(make_app: Callable[..., Starlette], scheme: str) -> None:
    async with http(make_app(api_keys=split_keys("secret-key"))) as client:
        headers = {"Authorization": f"{scheme} secret-key"}
        assert (await client.post(CHAT, json=user("hi"), headers=headers)).status_code == 200
        assert (await client.get("/metrics", headers=headers)).status_code == 200


async def test_health_needs_no_key(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_keys=split_keys("secret-key"))) as client:
        assert (await client.get("/health")).status_code == 200


async def test_a_key_beyond_ascii(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_keys=split_keys("schlüssel"))) as client:
        headers = {"Authorization": "Bearer schlüssel".encode()}
        assert (await client.get("/version", headers=headers)).status_code == 200


async def test_several_keys_by_either_header(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_keys=split_keys("one,two"))) as client:
        for headers in ({"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}, {"X-Api-Key": "two"}):
            assert (await client.get("/version", headers=headers)).status_code == 200


async def test_metrics_can_be_open(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_keys=split_keys("k"), open_metrics=True)) as client:
        assert (await client.get("/metrics")).status_code == 200
        refusal(await client.get("/version"), 401)


async def test_every_key_is_compared_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ApiKeys(split_keys("first,second,third"))
    compared: list[int] = []
    monkeypatch.setattr(api_keys.hmac, "compare_digest", lambda a, b: bool(compared.append(len(a)) or a == b))
    for key in (b"first", b"third", b"none", b"f" * 10_000):
        compared.clear()
        keys.find(key)
        assert compared == [32] * 3


TENANTS = """
[alice]
keys = ["alice-1", "alice-2"]
raise_priority = true

[bob]
keys = ["bob-1"]
"""


@pytest.fixture
def tenants(tmp_path: Path) -> list[tuple[str, Caller]]:
    (tmp_path / "keys.toml").write_text(TENANTS)
    return read_keys(tmp_path / "keys.toml")


async def test_a_key_says_whose_share_is_used(
    make_app: Callable[..., Starlette], engine: FakeEngine, tenants: list[tuple[str, Caller]]
) -> None:
    async with http(make_app(api_keys=(*split_keys("plain"), *tenants))) as client:
        for key in ("alice-1", "alice-2", "bob-1", "plain"):
            for path, body in ((CHAT, user("hi")), (COMPLETIONS, {"prompt": "hi"})):
                answer = await client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
                assert answer.status_code == 200
    assert [r.tenant for r in engine.added[::2]] == ["alice", "alice", "bob", ""]
    assert {r.priority for r in engine.added} == {0}


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({"priority": 5}, 5),
        ({"priority": "batch"}, 1),
        ({"priority": "normal"}, 0),
        ({"service_tier": "flex"}, 1),
        ({"service_tier": "auto"}, 0),
        ({"service_tier": "default", "priority": 3}, 3),
        ({"priority": -3}, -3),
        ({"priority": "high"}, -1),
        ({"service_tier": "priority"}, -1),
    ],
)
async def test_anyone_may_wait_longer_and_some_may_go_first(
    make_app: Callable[..., Starlette],
    engine: FakeEngine,
    tenants: list[tuple[str, Caller]],
    fields: dict[str, Any],
    priority: int,
) -> None:
    async with http(make_app(api_keys=tenants)) as client:
        answers = {
            key: await client.post(CHAT, json=user("hi", **fields), headers={"X-Api-Key": key})
            for key in ("alice-1", "bob-1")
        }
    assert answers["alice-1"].status_code == 200
    if priority < 0:
        assert refusal(answers["bob-1"], 403)["param"] == next(iter(fields))
    assert {r.priority for r in engine.added} == {priority}
    assert len(engine.added) == (1 if priority < 0 else 2)


async def test_two_fields_may_not_ask_for_different_priorities(client: httpx.AsyncClient) -> None:
    error = refusal(await client.post(CHAT, json=user("hi", priority=1, service_tier="priority")))
    assert error["param"] == "service_tier"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no keys"),
        ("alice = 5", "alice"),
        ("[alice]", "keys"),
        ("[alice]\nkeys = []", "needs a name and a key"),
        ('[alice]\nkeys = ["a b"]', "ASCII"),
        ('[alice]\nkeys = ["a", "a"]', "twice"),
        ('[a]\nkeys = ["same"]\n[b]\nkeys = ["same"]', "twice"),
        ('[a]\nkeys = ["x"]\nadmin = true', "admin"),
        ("[[", "cannot be read"),
    ],
)
def test_a_file_of_keys_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_keys(path)
    assert caught.value.field == "api_key_file"
    assert "same" not in str(caught.value).replace("keys.toml", "")


def test_a_file_of_keys_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"carol": {"keys": ["c"]}}')
    assert read_keys(path) == [("c", Caller("carol", may_raise_priority=False))]
    path.write_text('{"carol": {"keys": ["c"]}, "carol": {"keys": ["d"]}}')
    with pytest.raises(ConfigError, match="'carol' is given twice"):
        read_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "absent.json")

"""The API key guards every path but /health."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.applications import Starlette
from tests.server.serving import CHAT, http, refusal, user

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
    ("GET", "//health"),
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
    ],
)
async def test_without_the_key_nothing_is_told(
    make_app: Callable[..., Starlette], method: str, path: str, headers: dict[str, str]
) -> None:
    async with http(make_app(api_key="secret-key")) as client:
        response = await client.request(method, path, headers=headers)
        assert refusal(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


async def test_two_authorization_headers_are_none(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_key="k")) as client:
        response = await client.get("/version", headers=[("Authorization", "Bearer k"), ("Authorization", "Bearer x")])
        refusal(response, 401)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_with_the_key_all_is_open(make_app: Callable[..., Starlette], scheme: str) -> None:
    async with http(make_app(api_key="secret-key")) as client:
        headers = {"Authorization": f"{scheme} secret-key"}
        assert (await client.post(CHAT, json=user("hi"), headers=headers)).status_code == 200
        assert (await client.get("/metrics", headers=headers)).status_code == 200


async def test_health_needs_no_key(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_key="secret-key")) as client:
        assert (await client.get("/health")).status_code == 200


async def test_a_key_beyond_ascii(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(api_key="schlüssel")) as client:
        headers = {"Authorization": "Bearer schlüssel".encode()}
        assert (await client.get("/version", headers=headers)).status_code == 200

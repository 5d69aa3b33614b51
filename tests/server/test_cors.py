"""Web pages of other origins read nothing unless the operator lists them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.applications import Starlette
from tests.server.serving import CHAT, http, user

from headrace.server.api_keys import split_keys

PAGE = "https://page.example"
ASKED = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


async def test_without_listed_origins_no_page_is_let_in(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app()) as client:
        preflight = await client.options(CHAT, headers=ASKED)
        assert preflight.status_code == 405
        answer = await client.post(CHAT, json=user("hi"), headers={"Origin": PAGE})
    for response in (preflight, answer):
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_a_page_cannot_post_without_asking_first(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app()) as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            sent = {"Origin": PAGE, "Content-Type": kind}
            assert (await client.post(CHAT, content=b'{"messages": []}', headers=sent)).status_code == 415


async def test_listed_origins_may_read_and_others_may_not(make_app: Callable[..., Starlette]) -> None:
    app = make_app(allowed_origins=(PAGE,), api_keys=split_keys("k"))
    async with http(app) as client:
        preflight = await client.options(CHAT, headers=ASKED)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
        refused = await client.post(CHAT, json=user("hi"), headers={"Origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        sent = {"Origin": "https://other.example", "Authorization": "Bearer k"}
        other = await client.post(CHAT, json=user("hi"), headers=sent)
        assert other.status_code == 200
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000"])
async def test_a_star_is_any_page(make_app: Callable[..., Starlette], origin: str) -> None:
    async with http(make_app(allowed_origins=("*",))) as client:
        answer = await client.post(CHAT, json=user("hi"), headers={"Origin": origin})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers

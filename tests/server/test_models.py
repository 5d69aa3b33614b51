"""/v1/models lists the one model served."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from starlette.applications import Starlette
from tests.server.fake_engine import CONTEXT
from tests.server.serving import MODEL, http, refusal

CARD = {
    "id": MODEL,
    "object": "model",
    "created": 1700000000,
    "owned_by": "headrace",
    "root": MODEL,
    "parent": None,
    "max_model_len": CONTEXT,
}


async def test_models(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models")).json() == {"data": [CARD], "object": "list"}
    assert (await client.get(f"/v1/models/{MODEL}")).json() == CARD
    assert refusal(await client.get("/v1/models/other"), 404)["code"] == "model_not_found"


async def test_a_name_with_slashes(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(model_name="org/name")) as client:
        assert (await client.get("/v1/models/org/name")).json()["id"] == "org/name"

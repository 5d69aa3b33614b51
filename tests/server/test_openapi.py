"""The OpenAPI document covers every route, and its references hold."""

from __future__ import annotations

import json
import re

import httpx

from headrace.server.app import ROUTES
from headrace.server.fields import NEUTRAL_ONLY, NO_EFFECT
from headrace.server.protocol import ChatBody, CompletionBody


async def test_every_route_and_method_is_described(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    served = {route.path.replace(":path", ""): {m.lower() for m in route.methods or ()} - {"head"} for route in ROUTES}
    assert {path: set(methods) - {"parameters"} for path, methods in paths.items()} == served


async def test_references_hold(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert named == set(document["components"]["schemas"])


async def test_bodies_list_every_field_and_no_other(client: httpx.AsyncClient) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    for name, body in (("ChatBody", ChatBody), ("CompletionBody", CompletionBody)):
        assert schemas[name]["additionalProperties"] is False
        assert set(schemas[name]["properties"]) == {*body.__struct_fields__, *NO_EFFECT, *NEUTRAL_ONLY}

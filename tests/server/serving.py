"""How tests reach an app: by httpx without a socket, or over a real one in the same event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from tests.server.fake_engine import EOS

from headrace.server.connection import Connection
from headrace.server.settings import ServerSettings

MODEL = "test-model"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def settings(**changes: Any) -> ServerSettings:
    fields: dict[str, Any] = {"model_name": MODEL, "version": "1.2.3", "created": 1700000000, "eos_ids": (EOS,)}
    return ServerSettings(**{**fields, **changes})


def user(text: str, **fields: Any) -> dict[str, Any]:
    """A chat body with one message."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def events(text: str) -> list[Any]:
    """The data of server-sent events; the last must be [DONE]."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    assert parts.pop() == "data: [DONE]"
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of an OpenAI-shaped refusal."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@asynccontextmanager
async def http(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[int]:
    """Serve on a real socket in this event loop; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=Connection, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; the test's own timeout is the limit."""
    while not condition():
        await asyncio.sleep(0.002)

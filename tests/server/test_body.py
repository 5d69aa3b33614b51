"""Bodies that are not what they should be, and bodies that are large, over a real socket where that matters."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import ByteTokenizer, FakeEngine
from tests.server.serving import CHAT, COMPLETIONS, refusal, served, user


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"5",
        b"true",
        b'{"prompt": "x", x}',
        b'{"prompt": "x"',
        b'{"prompt": NaN}',
        b'{"prompt": 1e999}',
        b'{"prompt": [1' + b"0" * 5000 + b"]}",
        b'{"prompt": "\\ud800"}',
        '{"prompt": "你好"}'.encode("gbk"),
        '{"prompt": "hi"}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_what_is_no_json_object_is_refused(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert refusal(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", [None, "", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
async def test_content_type_must_be_json(client: httpx.AsyncClient, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    response = await client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert "application/json" in refusal(response, 415)["message"]


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"])
async def test_json_content_types(client: httpx.AsyncClient, kind: str) -> None:
    response = await client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": kind})
    assert response.status_code == 200


async def chunked(total: int, sent: list[int]) -> AsyncIterator[bytes]:
    piece = b" " * 65536
    for _ in range(total // len(piece)):
        sent.append(len(piece))
        yield piece


@pytest.mark.parametrize("declared", [True, False])
async def test_too_large_a_body_is_413_without_buffering(
    make_app: Callable[..., Starlette], engine: FakeEngine, declared: bool
) -> None:
    limit, total = 2**20, 512 * 2**20
    sent: list[int] = []
    headers = {"content-type": "application/json"}
    if declared:
        headers["content-length"] = str(total)
    async with served(make_app(max_body_bytes=limit)) as port, httpx.AsyncClient(timeout=60) as client:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        url = f"http://127.0.0.1:{port}{COMPLETIONS}"
        response = await client.post(url, content=chunked(total, sent), headers=headers)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        error = refusal(response, 413)
        assert str(limit) in error["message"]
        assert grown < total // 8
        assert (await client.post(url, json={"prompt": "next"})).status_code == 200
    assert len(engine.added) == 1


async def test_a_body_at_the_limit_passes(make_app: Callable[..., Starlette]) -> None:
    body = json.dumps({"prompt": "x"}).encode()
    transport = httpx.ASGITransport(make_app(max_body_bytes=len(body)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        headers = {"content-type": "application/json"}
        assert (await client.post(COMPLETIONS, content=body, headers=headers)).status_code == 200
        assert (await client.post(COMPLETIONS, content=body + b" ", headers=headers)).status_code == 413


@pytest.mark.parametrize(
    "body", [user("word " * 5_400_000), {"prompt": "word " * 5_400_000}, {"prompt": [1234, 1234567] * 2_090_000}]
)
async def test_case_44_health_answers_while_a_large_body_is_read(
    app: Starlette, port: int, body: dict[str, Any]
) -> None:
    data = json.dumps(body).encode()
    assert len(data) > 27_000_000
    path = CHAT if "messages" in body else COMPLETIONS
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        large = asyncio.create_task(client.post(path, content=data, headers=headers))
        answered = 0
        while not large.done():
            assert (await client.get("/health", timeout=1)).status_code == 200
            answered += 1
        error = refusal(await large)
        assert error["code"] == "context_length_exceeded"
        assert answered > 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"[1]," * 7_800_000 + b"[1]]}",
        b'{"prompt": [' + b"{}," * 300_000 + b"{}]}",
        b'{"prompt": [' + b'"",' * 10_000_000 + b'""]}',
        b'{"prompt": [' + b"1," * 15_000_000 + b"1]}",
    ],
    ids=["arrays", "objects", "strings", "numbers"],
)
async def test_millions_of_tiny_values_are_refused_unparsed(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr("headrace.server.body._parse", lambda data: pytest.fail("it was parsed"))
    response = await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert refusal(response, 413)["code"] == "body_too_large"


async def test_a_long_text_full_of_commas_is_read(make_app: Callable[..., Starlette]) -> None:
    transport = httpx.ASGITransport(make_app(max_body_values=200))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.post(COMPLETIONS, json={"prompt": "a,b" * 50})).status_code == 200


async def test_text_that_cannot_fit_is_not_tokenized(make_app: Callable[..., Starlette]) -> None:
    tokenizer = ByteTokenizer()
    transport = httpx.ASGITransport(make_app(tokenizer))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        refusal(await client.post(COMPLETIONS, json={"prompt": "x" * 1_000_000}))
        assert tokenizer.encoded == []
        refusal(await client.post(COMPLETIONS, json={"prompt": "x" * 2_000}))
        assert tokenizer.encoded == [2_000]


async def test_a_body_that_never_arrives_is_408(make_app: Callable[..., Starlette]) -> None:
    async with served(make_app(body_timeout=0.05)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 100\r\n\r\n{")
        assert (await reader.readline()).split()[1] == b"408"
        writer.close()
        await writer.wait_closed()

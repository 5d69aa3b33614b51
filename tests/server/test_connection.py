"""What reaches the server before it is a request, byte for byte over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from starlette.applications import Starlette
from tests.server.serving import served

from headrace.server import connection

BODY = b'{"prompt": "hi", "max_tokens": 2}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(
    BODY
)
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"


async def exchange(app: Starlette, *pieces: bytes) -> tuple[int, Any]:
    """Send pieces one after another; the first answer's status and JSON body."""
    async with served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.01)
        answer = await one_answer(reader)
        writer.close()
        return answer


async def one_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split()[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


@pytest.mark.parametrize("offer", [b"", H2C, WEBSOCKET], ids=["plain", "h2c", "websocket"])
async def test_an_offer_to_upgrade_is_declined_and_the_request_answered(app: Starlette, offer: bytes) -> None:
    async with served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(POST + offer + b"\r\n" + BODY)
            status, answer = await one_answer(reader)
            assert (status, answer["object"]) == (200, "text_completion")
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"FOO /health HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nx: a\x00b\r\n\r\n",
    ],
)
async def test_what_is_no_http_gets_an_error_in_the_api_shape(app: Starlette, sent: bytes) -> None:
    status, answer = await exchange(app, sent)
    assert (status, answer["error"]["code"]) == (400, "invalid_http")


async def test_a_head_is_bounded_in_size(app: Starlette) -> None:
    half = b"x-filling: " + b"a" * (connection.MAX_HEAD_BYTES // 2) + b"\r\n"
    start = b"GET /health HTTP/1.1\r\nhost: x\r\n"
    status, answer = await exchange(app, start, half, half, half)
    assert (status, answer["error"]["code"]) == (431, "head_too_large")
    assert await exchange(app, start, half, b"\r\n") == (200, {"status": "healthy"})


async def test_a_large_body_is_no_head(app: Starlette) -> None:
    body = b'{"prompt": "hi", "max_tokens": 2, "user": "' + b"a" * (3 * connection.MAX_HEAD_BYTES) + b'"}'
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    status, answer = await exchange(app, head, body[:70_000], body[70_000:140_000], body[140_000:])
    assert (status, answer["object"]) == (200, "text_completion")


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nx: "])
async def test_a_head_is_bounded_in_time(app: Starlette, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    status, answer = await exchange(app, sent)
    assert (status, answer["error"]["code"]) == (408, "head_timeout")


async def test_a_path_with_a_slash_too_many_is_unknown(app: Starlette) -> None:
    status, answer = await exchange(app, b"GET /health/ HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n")
    assert (status, answer["error"]["code"]) == (404, "unknown_url")


async def test_an_encoded_body_is_refused(app: Starlette) -> None:
    status, answer = await exchange(app, POST + b"content-encoding: gzip\r\n\r\n" + BODY)
    assert (status, answer["error"]["code"]) == (415, "unsupported_media_type")


async def test_the_kernel_bounds_what_is_left_unread(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded: list[tuple[int, int]] = []
    bound = connection._bound_silence

    def seen(sock: socket.socket) -> None:
        bound(sock)
        bounded.append(
            (
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            )
        )

    monkeypatch.setattr(connection, "_bound_silence", seen)
    await exchange(app, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert bounded == [(connection.UNREAD_SECONDS * 1000, 1)]

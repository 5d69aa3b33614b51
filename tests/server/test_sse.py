"""Clients that leave, stop reading or share a name; streams over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import CONTEXT, FakeEngine, endless, say
from tests.server.serving import CHAT, COMPLETIONS, events, eventually, http, refusal, served, user


def raw_request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def metric(port: int, line: str) -> float:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    return float(next(found for found in text.splitlines() if found.startswith(line)).rpartition(" ")[2])


ABORTED = 'headrace:request_success_total{finished_reason="abort"'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["accepting", "prefill", "decode"])
@pytest.mark.parametrize("leave", ["close", "reset", "half-close"])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_leaves_frees_the_engine(
    app: Starlette, port: int, engine: FakeEngine, stream: bool, phase: str, leave: str, n: int
) -> None:
    engine.reply = endless
    engine.accept_delay = 60 if phase == "accepting" else 0
    engine.delay = 60 if phase == "prefill" else 0.01
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw_request(CHAT, user("hi", stream=stream, n=n)))
    await eventually(lambda: len(engine.live) == n)
    if phase == "decode":
        await eventually(lambda: engine.produced > 4)
    if leave == "reset":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    if leave == "half-close":
        writer.write_eof()
    else:
        writer.close()
    await eventually(lambda: not engine.live)
    await eventually(lambda: app.state.service.live == 0)
    assert engine.produced < CONTEXT * n / 2
    if phase != "accepting":
        assert sorted(engine.aborted) == sorted(r.request_id for r in engine.added)
        assert await metric(port, ABORTED) == n
    assert await metric(port, "headrace:num_requests_running") == 0
    writer.close()


async def test_many_resets_leave_nothing(app: Starlette, port: int, engine: FakeEngine) -> None:
    engine.reply, engine.delay = endless, 60
    before = len(asyncio.all_tasks())
    for _ in range(100):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw_request(COMPLETIONS, {"prompt": "x", "stream": True}))
        await writer.drain()
        await eventually(lambda: len(engine.live) > 0)
        writer.transport.abort()
        await eventually(lambda: not engine.live)
    await eventually(lambda: len(asyncio.all_tasks()) <= before)
    assert app.state.service.live == 0


async def test_the_socket_closes_after_a_stream(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw_request(CHAT, user("hi", stream=True)))
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()


async def test_a_refused_stream_is_a_plain_answer(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = raw_request(CHAT, user("hi", stream=True, n=0)).replace(b"Host: x", b"Host: x\r\nConnection: close")
    writer.write(request)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"data:" not in answer
    writer.close()


async def test_a_reader_that_stops_is_dropped_and_blocks_nobody(
    make_app: Callable[..., Starlette], engine: FakeEngine
) -> None:
    """The fake's context is short, so fat chunks (20 alternatives a token) fill the socket instead."""
    engine.reply = endless
    async with served(make_app(stall_timeout=0.2)) as port:
        stalled = []
        body = {"prompt": ["x"] * 30, "stream": True, "max_tokens": 190, "logprobs": 20, "n": 2}
        for _ in range(2):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            await asyncio.get_running_loop().sock_sendall(sock, raw_request(COMPLETIONS, body))
            stalled.append(sock)
        await eventually(lambda: len(engine.live) > 0)
        async with httpx.AsyncClient() as client:
            response = await client.post(f"http://127.0.0.1:{port}{CHAT}", json=user("hi", stream=True, max_tokens=5))
        assert events(response.text)[-1]["choices"][0]["finish_reason"] == "length"
        await eventually(lambda: not engine.live)
        assert engine.aborted, "the streams fitted the sockets' buffers: nobody stalled"
        for sock in stalled:
            sock.close()


async def test_two_live_requests_with_one_request_id_do_not_mix(app: Starlette, engine: FakeEngine) -> None:
    engine.reply = lambda request: [*bytes(request.prompt_ids)] * 5
    engine.delay = 0.002
    async with http(app) as client:
        answers = await asyncio.gather(
            *(
                client.post(COMPLETIONS, json={"prompt": p, "stream": True}, headers={"X-Request-Id": "same"})
                for p in "ab"
            )
        )
    for prompt, answer in zip("ab", answers, strict=True):
        assert "".join(c["choices"][0]["text"] for c in events(answer.text)) == prompt * 5
        assert answer.headers["x-request-id"] == "same"
    assert len({r.request_id for r in engine.added}) == 2
    assert not any("same" in r.request_id for r in engine.added)


@pytest.mark.parametrize("given", ["", "x" * 300, "a b", "snow☃".encode()])
async def test_an_odd_request_id_is_replaced(client: httpx.AsyncClient, given: Any) -> None:
    response = await client.get("/health", headers={"X-Request-Id": given})
    assert len(response.headers["x-request-id"]) == 32


async def test_streams_beside_each_other_keep_their_own(port: int, engine: FakeEngine) -> None:
    engine.reply = lambda request: say("".join(chr(c) for c in request.prompt_ids) * 3)(request)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        bodies = [{"prompt": f"<{i}>", "stream": True, "max_tokens": 50} for i in range(32)]
        answers = await asyncio.gather(*(client.post(COMPLETIONS, json=body) for body in bodies))
    texts = ["".join(c["choices"][0]["text"] for c in events(a.text)) for a in answers]
    assert texts == [f"<{i}>" * 3 for i in range(32)]


@pytest.mark.parametrize("at", [0, 3])
async def test_an_engine_that_dies_ends_the_stream_with_an_error(
    client: httpx.AsyncClient, engine: FakeEngine, at: int
) -> None:
    engine.delay = 0.005

    async def kill() -> None:
        await eventually(lambda: engine.produced >= at and bool(engine.live))
        engine.dead = True

    streamed, _ = await asyncio.gather(client.post(CHAT, json=user("hi", stream=True)), kill())
    error = events(streamed.text)[-1]["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_unavailable")
    assert "4242" not in streamed.text
    engine.dead, engine.produced = False, 0
    engine.live.clear()
    whole, _ = await asyncio.gather(client.post(CHAT, json=user("hi", n=2)), kill())
    assert refusal(whole, 503)["code"] == "engine_unavailable"
    assert "4242" not in whole.text
    assert whole.headers["retry-after"]

"""A server in a bad neighbourhood: clients that leave, reset, send rubbish or do not read, and an engine that is killed
twice, while good requests run. Each of these gets what it gets on a quiet server, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time

import httpx
import psutil
from tests.test_serving import engine_of, health, serving, wait_for

GOOD = 24
RESETS = 200
KILLS_AFTER = (6, 14)

RUBBISH = (
    b"",
    b"{",
    b"[]",
    b'{"prompt": 5}',
    b'{"prompt": "x", "temperature": "hot"}',
    b'{"prompt": "x", "max_tokens": 1e99}',
    b'{"prompt": "x", "no_such_field": 1}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"prompt": [99999999]}',
    b'{"prompt": "x", "structured_outputs": {"regex": "("}}',
)


def asked(index: int) -> dict[str, object]:
    draw = random.Random(index)
    forms = [{}, {}, {"structured_outputs": {"regex": "[a-z ]{8,40}"}}, {"logprobs": 2}]
    return {
        "prompt": draw.choice(["Once upon a time", "The water ran", "One, two, three,"]) * draw.choice([1, 1, 9]),
        "max_tokens": draw.randint(8, 40),
        "temperature": draw.choice([0, 1]),
        "seed": index,
        "stream": True,
        **draw.choice(forms),
    }


async def answer(client: httpx.AsyncClient, index: int) -> list[object]:
    """What a stream said, however it was cut: text, log-probabilities and the end."""
    text, logprobs, end = "", [], None
    async with client.stream("POST", "/v1/completions", json=asked(index), timeout=120) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                text += choice["text"]
                logprobs += (choice["logprobs"] or {}).get("token_logprobs", [])
                end = choice["finish_reason"]
    return [text, logprobs, end]


async def leave(client: httpx.AsyncClient, draw: random.Random) -> None:
    """Ask for much, read a little, hang up."""
    body = {"prompt": "Tell me all.", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    lines = draw.randint(0, 6)
    async with client.stream("POST", "/v1/completions", json=body, timeout=120) as response:
        async for _ in response.aiter_lines():
            lines -= 1
            if lines < 0:
                return


async def send_rubbish(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/v1/completions", content=body, timeout=60)
    assert 400 <= response.status_code < 500, (body[:60], response.text)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def reset(url: str, draw: random.Random) -> None:
    """Connect, perhaps begin a request, and cut the line (RST)."""
    host, port = url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)))
    request = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n\r\n{"prompt": "x", "stream": true'
    line.send(request[: draw.randrange(1, len(request))])
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def stall(url: str) -> socket.socket:
    """Ask for a long stream and never read it."""
    host, port = url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = b'{"prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true}'
    line.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return line


async def chaos(
    url: str, process, calm: list[list[object]], *, hostile: bool = True, kills: tuple[int, ...] = KILLS_AFTER
) -> list[float]:
    """Good requests, four at a time, each held against its answer in calm; their seconds. hostile: among bad
    neighbours. kills: good answers that have come when the engine is killed."""
    draw = random.Random(0)
    done = 0
    took: list[float] = []
    over = asyncio.Event()

    async def good(client: httpx.AsyncClient, index: int) -> None:
        nonlocal done
        begun = time.monotonic()
        assert await answer(client, index) == calm[index], asked(index)
        took.append(time.monotonic() - begun)
        done += 1

    async def kill() -> None:
        for after in kills:
            while done < after:
                await asyncio.sleep(0.02)
            engine_of(process).kill()
            await asyncio.to_thread(wait_for, lambda: health(url) == 503)
            await asyncio.to_thread(wait_for, lambda: health(url) == 200, 60)

    async def bad(client: httpx.AsyncClient) -> None:
        while not over.is_set():
            await leave(client, draw)
            await send_rubbish(client, draw.choice(RUBBISH))

    async def resets() -> None:
        for _ in range(RESETS):
            reset(url, draw)
            await asyncio.sleep(0.01)

    stalled = [stall(url) for _ in range(3 if hostile else 0)]
    async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None)) as client:
        bads = (bad(client), bad(client), resets()) if hostile else ()
        others = [asyncio.create_task(one) for one in (*bads, kill())]
        slots = asyncio.Semaphore(4)

        async def one_of_four(index: int) -> None:
            async with slots:
                await good(client, index)

        await asyncio.gather(*map(one_of_four, range(len(calm))))
        over.set()
        await asyncio.gather(*others)
    for line in stalled:
        line.close()
    return took


async def quiet(url: str, count: int = GOOD) -> list[list[object]]:
    async with httpx.AsyncClient(base_url=url) as client:
        return [await answer(client, index) for index in range(count)]


def in_use(url: str) -> float:
    """Blocks held and requests that run or wait."""
    lines = httpx.get(url + "/metrics", timeout=30).text.splitlines()
    names = ("headrace:kv_cache_usage_perc", "headrace:num_requests_running", "headrace:num_requests_waiting{")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))


def test_good_requests_are_served_as_ever_and_nothing_is_left_behind(default_model):
    with serving(default_model, num_kv_blocks=160, max_num_seqs=8) as (url, process):
        calm = asyncio.run(quiet(url))
        before = psutil.Process(process.pid).memory_info().rss
        asyncio.run(chaos(url, process, calm))
        wait_for(lambda: in_use(url) == 0, 60)
        assert health(url) == 200
        grown = psutil.Process(process.pid).memory_info().rss - before
        assert grown < 48 * 2**20

"""Public faults 45 to 50 and their neighbours over a real engine: whoever leaves, is aborted or is refused costs nobody
else anything, and every block comes back.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

import httpx
import pytest
from tests.server.local_engine import LocalEngine, app_over, null_executor
from tests.server.serving import CHAT, COMPLETIONS, events, eventually, http, refusal, served, user

LONG = {"prompt": "y" * 100, "max_tokens": 150, "ignore_eos": True, "temperature": 1}


def raw(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def reset(writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    lines = [line for line in (await client.get("/metrics")).text.splitlines() if line and line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 5], ids=["queued", "in prefill", "in decode"])
async def test_cases_45_46_a_client_that_leaves_stops_its_generation(stream: bool, steps: int) -> None:
    engine = LocalEngine()
    engine.paused = steps == 0
    async with app_over(engine) as app, served(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw(COMPLETIONS, {**LONG, "n": 3, "stream": stream}))
        await eventually(lambda: app.state.service.live == 1 and engine.engine.stats().step >= steps)
        await eventually(lambda: engine.engine.stats().running + engine.engine.stats().waiting == 3)
        writer.close()
        await eventually(lambda: app.state.service.live == 0)
        engine.paused = False
        await eventually(lambda: engine.idle)
        async with http(app) as client:
            seen = await metrics(client)
        aborted = [v for name, v in seen.items() if "request_success_total" in name and '"abort"' in name]
        assert aborted == [3]
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert [v for key, v in seen.items() if key.startswith(f"headrace:{name}")] == [0]


async def test_case_46_everything_is_aborted_at_once() -> None:
    engine = LocalEngine()
    async with app_over(engine) as app, http(app) as client:
        running = [asyncio.create_task(client.post(COMPLETIONS, json={**LONG, "seed": i})) for i in range(20)]
        await eventually(lambda: engine.engine.stats().step > 3)
        await app.state.service.end_live()
        answers = await asyncio.gather(*running)
        assert {refusal(a, 500)["type"] for a in answers} == {"server_error"}
        await eventually(lambda: engine.idle)
        seen = await metrics(client)
        assert min(seen.values()) >= 0
        assert (await client.post(COMPLETIONS, json={"prompt": "next"})).status_code == 200


async def test_case_47_no_counter_goes_below_zero_whatever_is_aborted_twice() -> None:
    engine = LocalEngine()
    async with app_over(engine) as app, http(app) as client:
        beside = asyncio.create_task(client.post(COMPLETIONS, json={**LONG, "stream": True}))
        await eventually(lambda: bool(engine.engine.stats().running))
        for _ in range(3):
            await engine.abort(["unheard-of", "", "cmpl-0-0"])
        doomed = asyncio.create_task(client.post(CHAT, json=user("x", ignore_eos=True)))
        await eventually(lambda: app.state.service.live == 2)
        doomed.cancel()
        assert events((await beside).text)[-1]["choices"][0]["finish_reason"] == "length"
        await eventually(lambda: engine.idle)
        assert min((await metrics(client)).values()) >= 0


async def test_case_49_ten_times_the_load_is_refused_at_once_and_the_accepted_finish() -> None:
    engine = LocalEngine(null_executor(slots=4), max_queued_requests=6)
    async with app_over(engine) as app, http(app) as client:
        engine.paused = True
        bodies = [{**LONG, "max_tokens": 20, "seed": i, "stream": i % 2 == 0} for i in range(100)]
        tasks = [asyncio.create_task(client.post(COMPLETIONS, json=body)) for body in bodies]
        await eventually(lambda: sum(task.done() for task in tasks) >= 90)
        engine.paused = False
        answers = await asyncio.gather(*tasks)
    refused = [a for a in answers if a.status_code == 429]
    assert len(refused) == 90
    assert {refusal(a, 429)["type"] for a in refused} == {"rate_limit_error"}
    assert all(int(a.headers["retry-after"]) >= 1 for a in refused)
    assert [a.status_code for a in answers if a.status_code != 429] == [200] * 10
    assert engine.idle


async def test_case_50_two_hundred_sockets_reset_in_prefill_leave_nothing() -> None:
    engine = LocalEngine(max_queued_requests=1000)
    async with app_over(engine) as app, served(app) as port:
        engine.paused = True
        tasks_before = len(asyncio.all_tasks())
        writers = []
        for number in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw(COMPLETIONS, {**LONG, "stream": number % 2 == 0}))
            writers.append(writer)
        await eventually(lambda: app.state.service.live == 200)
        for number, writer in enumerate(writers):
            writer.write_eof() if number % 5 == 0 else reset(writer)
        await eventually(lambda: app.state.service.live == 0)
        engine.paused = False
        await eventually(lambda: engine.idle)
        for writer in writers:
            writer.close()
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks_before + 1)
        async with http(app) as client:
            assert (await client.post(COMPLETIONS, json={"prompt": "next"})).status_code == 200

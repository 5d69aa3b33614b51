"""ProcessClient and EngineLoop together, over a real socket and a real process: answers, refusals, and every way in
which the other side can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import zmq

from headrace.core.errors import EngineDeadError, EngineError, OverloadedError, RequestError
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.engine import attempts, heartbeat
from headrace.engine import client as client_module
from headrace.engine.client import ProcessClient
from headrace.engine.client_protocol import HealthState
from headrace.engine.meeting_folder import HEARTBEAT_NAME, SOCKET_NAME

ECHO = Path(__file__).parent / "echo_engine.py"


def request(prompt, *, request_id="r", max_tokens=None):
    return Request(request_id, prompt, SamplingParams(), max_tokens or len(prompt), seed=0)


async def tokens_of(stream):
    return [token async for delta in stream for token in delta.token_ids]


async def until(condition, seconds=15.0):
    """Wait for condition, polling; the test fails by its own assertion if it never comes."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return condition()


class EchoProcess:
    """An EngineHandle over echo_engine.py."""

    def __init__(self, folder, mode="serve"):
        self.folder, self.mode = folder, mode
        self.process = self.spawn()
        self.starts = 1

    def spawn(self):
        return subprocess.Popen([sys.executable, str(ECHO), str(self.folder), self.mode, str(os.getpid())])

    @property
    def pid(self):
        return self.process.pid

    def exit_status(self):
        return self.process.poll()

    def kill(self):
        self.process.kill()

    def restart(self):
        assert self.process.poll() is not None
        self.starts += 1
        self.process = self.spawn()


@contextlib.contextmanager
def echo_process(folder, mode="serve"):
    engine = EchoProcess(folder, mode)
    try:
        yield engine
    finally:
        engine.kill()
        engine.process.wait()


@contextlib.asynccontextmanager
async def connected(process):
    client = ProcessClient(process)
    try:
        await client.start()
        yield client
    finally:
        client.close()


@pytest.fixture
async def engine(tmp_path):
    """(client, process)"""
    with echo_process(tmp_path) as process:
        async with connected(process) as client:
            yield client, process


async def test_requests_are_answered_side_by_side(engine):
    client, _ = engine
    assert client.ready.vocab_size == 100
    streams = [await client.add(request([i, i + 1, i + 2], request_id=f"r{i}")) for i in range(20, 50)]
    assert await asyncio.gather(*map(tokens_of, streams)) == [[i, i + 1, i + 2] for i in range(20, 50)]


async def test_a_refusal_is_the_error_that_the_engine_raised(engine):
    client, _ = engine
    with pytest.raises(RequestError, match="0 is refused") as refused:
        await client.add(request([0]))
    assert (refused.value.param, refused.value.code, refused.value.status) == ("prompt", "zero", 400)
    with pytest.raises(OverloadedError) as overloaded:
        await client.add(request([1]))
    assert overloaded.value.retry_after == 7.0
    assert await tokens_of(await client.add(request([5]))) == [5]


async def test_an_id_in_use_is_never_shared(engine):
    client, _ = engine
    stream = await client.add(request([17], max_tokens=20))
    with pytest.raises(EngineError, match="in use"):
        await client.add(request([5]))
    assert await tokens_of(stream) == [17] * 20


async def test_a_slow_reader_finds_everything_in_one_delta(engine):
    client, _ = engine
    stream = await client.add(request([5, 6, 7]))
    await tokens_of(await client.add(request([8] * 10, request_id="other")))
    deltas = [delta async for delta in stream]
    assert [d.token_ids for d in deltas] == [[5, 6, 7]]
    assert deltas[0].finish_reason is FinishReason.LENGTH


async def test_abort_ends_the_stream_and_frees_the_engine(engine):
    client, _ = engine
    stream = await client.add(request([17], max_tokens=100_000))
    assert await until(lambda: client.stats().running == 1)
    await client.abort(["r", "unknown"])
    deltas = [delta async for delta in stream]
    assert deltas[-1].finish_reason is FinishReason.ABORT
    assert await until(lambda: client.stats().running == 0)
    assert await tokens_of(await client.add(request([5], request_id="next"))) == [5]


async def test_a_caller_that_is_cancelled_while_it_waits_leaves_nothing(engine):
    client, process = engine
    os.kill(process.pid, signal.SIGSTOP)
    adding = asyncio.create_task(client.add(request([17], max_tokens=100_000)))
    await asyncio.sleep(0.05)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    os.kill(process.pid, signal.SIGCONT)
    assert await until(lambda: client.stats().step > 0 and client.stats().running == 0)


async def test_a_stopped_engine_is_noticed_and_recovers(engine, monkeypatch):
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 1.0)
    client, process = engine
    assert client.health() == (HealthState.HEALTHY, "")
    stream = await client.add(request([17], max_tokens=30))
    os.kill(process.pid, signal.SIGSTOP)
    assert await until(lambda: client.health().state is HealthState.DEGRADED)
    assert "sign of life" in client.health().reason
    os.kill(process.pid, signal.SIGCONT)
    assert await until(lambda: client.health().state is HealthState.HEALTHY)
    assert await tokens_of(stream) == [17] * 30


async def test_metrics_wait_for_nothing_and_an_inspection_not_for_ever(engine, monkeypatch):
    monkeypatch.setattr(client_module, "INSPECT_SECONDS", 0.2)
    client, process = engine
    os.kill(process.pid, signal.SIGSTOP)
    assert client.stats().running == 0
    with pytest.raises(EngineDeadError, match="did not answer"):
        await client.inspect("r")
    monkeypatch.setattr(client_module, "INSPECT_SECONDS", 60.0)
    asking = asyncio.create_task(client.inspect("r"))
    await asyncio.sleep(0)
    process.kill()
    with pytest.raises(EngineDeadError, match="killed by signal 9"):
        await asking


async def test_streams_go_on_when_a_killed_engine_is_started_again(engine):
    client, process = engine
    prompts = [[17, i, i + 1, i + 2] for i in range(20, 28)]
    streams = [await client.add(request(p, request_id=f"r{p[1]}", max_tokens=60)) for p in prompts]
    readers = [asyncio.create_task(tokens_of(stream)) for stream in streams]
    for _ in range(2):
        process.kill()
        assert await until(lambda: client.health().state is HealthState.DEGRADED)
        assert "killed by signal 9; it is being started again" in client.health().reason
        late = await client.add(request([5, 6], request_id=f"late{process.starts}"))
        assert await tokens_of(late) == [5, 6]
        assert client.health().state is HealthState.HEALTHY
    assert await asyncio.gather(*readers) == [p * 15 for p in prompts]
    assert (client.restarts, process.starts) == (2, 3)
    assert await until(lambda: client.stats().running == 0)


async def test_a_request_aborted_while_there_is_no_engine_is_not_replayed(engine):
    client, process = engine
    stream = await client.add(request([17], max_tokens=10**6))
    process.kill()
    assert await until(lambda: client.health().state is HealthState.DEGRADED)
    await client.abort(["r"])
    assert [d.finish_reason async for d in stream][-1] is FinishReason.ABORT
    assert await tokens_of(await client.add(request([5], request_id="next"))) == [5]
    assert await until(lambda: client.stats().running == 0)


async def test_a_request_that_ends_the_engine_is_found_and_ends_alone(engine):
    client, process = engine
    good = [await client.add(request([17, i], request_id=f"good{i}", max_tokens=40)) for i in range(3)]
    readers = [asyncio.create_task(tokens_of(stream)) for stream in good]
    bad = await client.add(request([5, 6, 13, 7], request_id="bad"))
    deltas = [delta async for delta in bad]
    assert [t for d in deltas for t in d.token_ids] == [5, 6]
    assert deltas[-1].finish_reason is FinishReason.ERROR
    assert "other requests are not affected" in deltas[-1].error
    assert await asyncio.gather(*readers) == [[17, i] * 20 for i in range(3)]
    assert process.starts <= 5
    assert client.health().state is HealthState.HEALTHY


async def test_an_engine_that_hangs_is_ended_and_started_again(engine, monkeypatch):
    client, process = engine
    monkeypatch.setattr(heartbeat, "STALLED_SECONDS", 1.0)
    good = asyncio.create_task(tokens_of(await client.add(request([5] * 40, request_id="good"))))
    bad = await client.add(request([6, 19], request_id="bad"))
    assert [d.error async for d in bad][-1] is not None
    assert await good == [5] * 40
    assert process.starts > 1


async def test_an_engine_that_keeps_ending_is_given_up(engine, monkeypatch):
    monkeypatch.setattr(attempts, "MOST_FRUITLESS", 2)
    client, process = engine
    stream = await client.add(request([17], request_id="r", max_tokens=100_000))
    process.mode = "die"
    process.kill()
    with pytest.raises(EngineDeadError, match="ended with status 3, 3 times in a row"):
        await tokens_of(stream)
    assert client.health().state is HealthState.DEAD
    with pytest.raises(EngineDeadError):
        await client.add(request([5]))
    with pytest.raises(EngineDeadError):
        client.stats()
    with pytest.raises(EngineDeadError):
        await client.inspect("r0")


async def test_another_model_in_the_place_of_the_first_is_not_taken_for_it(engine):
    client, process = engine
    stream = await client.add(request([17], max_tokens=100_000))
    process.mode = "other"
    process.kill()
    with pytest.raises(EngineDeadError, match="the model was changed"):
        await tokens_of(stream)


async def test_malformed_messages_change_nothing(engine, tmp_path):
    client, _ = engine
    context = zmq.Context()
    intruder = context.socket(zmq.DEALER)
    intruder.connect(f"ipc://{tmp_path / SOCKET_NAME}")
    for body in (b"", b"\xc1", b"\x81\xa4type\xa3Add", b"\x90" * 10_000, b"\x91" * 100_000, os.urandom(1000)):
        intruder.send(body)
    intruder.send_multipart([b"a", b"b", b"c"])
    assert await tokens_of(await client.add(request([5, 6]))) == [5, 6]
    intruder.close(linger=0)
    context.term()


async def test_the_socket_and_the_heartbeat_are_their_users_alone(engine, tmp_path):
    for name in (SOCKET_NAME, HEARTBEAT_NAME):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


async def test_an_idle_engine_uses_no_processor(engine):
    client, process = engine
    await tokens_of(await client.add(request([5])))
    watched = psutil.Process(process.pid)
    before = watched.cpu_times()
    await asyncio.sleep(1)
    after = watched.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.05


async def test_sigterm_finishes_what_was_accepted_and_refuses_the_rest(engine):
    client, first = engine[0], engine[1].process
    stream = await client.add(request([17], max_tokens=20))
    first.terminate()
    with pytest.raises(RequestError, match="shutting down"):
        for i in range(1000):
            await tokens_of(await client.add(request([17], request_id=f"late{i}")))
    assert await tokens_of(stream) == [17] * 20
    assert await asyncio.to_thread(first.wait, 10) == 0


async def test_a_second_sigterm_stops_at_once(engine):
    client, first = engine[0], engine[1].process
    await client.add(request([17], max_tokens=10**6))
    first.terminate()
    await asyncio.sleep(0.1)
    first.terminate()
    assert await asyncio.to_thread(first.wait, 10) == 0


async def test_stop_ends_streams_with_the_reason_and_takes_nothing_more(engine):
    client, first = engine[0], engine[1].process
    stream = await client.add(request([17], max_tokens=10**6))
    client.stop("enough")
    assert [d.error async for d in stream][-1] == "enough"
    with pytest.raises(EngineDeadError, match="enough"):
        await client.add(request([5], request_id="late"))
    await client.shutdown()
    assert await asyncio.to_thread(first.wait, 10) == 0


async def test_shutdown_ends_the_process(engine):
    client, first = engine[0], engine[1].process
    await client.shutdown()
    assert await asyncio.to_thread(first.wait, 10) == 0


async def test_an_engine_that_cannot_start_says_why(tmp_path):
    with echo_process(tmp_path, "fail") as process:
        client = ProcessClient(process)
        with pytest.raises(EngineDeadError, match="no such model"):
            await client.start()
        client.close()


async def test_the_engine_ends_with_its_parent(tmp_path):
    """The parent here is a shell that starts the engine, names it and is then killed."""
    script = f"{sys.executable} {ECHO} {tmp_path} serve $$ & echo $!; wait"
    parent = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    engine = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert await until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)

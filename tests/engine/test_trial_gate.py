"""Several clients of one engine: the gate lets one at a time try its suspects, and a poisoned request of any of them
ends alone."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.test_client import EchoProcess, request, tokens_of

from headrace.core.errors import EngineDeadError
from headrace.engine.client import ProcessClient
from headrace.engine.meeting_folder import engine_folder
from headrace.engine.trial_gate import TrialGate
from headrace.shared_engine import EngineState, SharedEngine


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30))
def test_who_tries_is_alone(tmp_path_factory, asked):
    path = tmp_path_factory.mktemp("gate") / "lock"
    gates = [TrialGate(path) for _ in range(3)]
    holder = None
    for who, trying in asked:
        if who == holder and not trying:
            holder = None
        assert gates[who].pass_through(trying=trying) is (holder in (None, who))
        if trying and holder is None:
            holder = who
    for gate in gates:
        gate.close()


def test_the_gate_opens_when_its_holder_ends(tmp_path):
    one, other = TrialGate(tmp_path / "lock"), TrialGate(tmp_path / "lock")
    assert one.pass_through(trying=True)
    assert not other.pass_through(trying=False)
    one.close()
    assert other.pass_through(trying=False)
    other.close()


class Restarted:
    """A supervisor over echo_engine.py."""

    def __init__(self, shared):
        self.shared, self.state, self.starts = shared, EngineState(shared), 0
        self.process = self._spawn()

    def _spawn(self):
        folder = engine_folder(self.shared, self.starts)
        folder.mkdir()
        return EchoProcess(folder)

    async def watch(self):
        while True:
            await asyncio.sleep(0.05)
            status = self.process.exit_status()
            if status is not None:
                self.starts += 1
                self.state.write(self.starts, status, given_up=False)
                await asyncio.sleep(0.5)
                self.process = self._spawn()


@contextlib.asynccontextmanager
async def two_clients(shared):
    supervisor = Restarted(shared)
    watching = asyncio.create_task(supervisor.watch())
    clients = [ProcessClient(SharedEngine(shared), TrialGate(shared / "gate")) for _ in range(2)]
    try:
        for client in clients:
            await client.start()
        yield supervisor, clients
    finally:
        watching.cancel()
        for client in clients:
            client.close()
        supervisor.process.kill()
        supervisor.process.process.wait()


async def test_a_poisoned_request_of_one_client_ends_alone(tmp_path):
    async with two_clients(tmp_path) as (supervisor, clients):
        readers = []
        for which, client in enumerate(clients):
            for i in range(2):
                stream = await client.add(request([17, 5 + i] * 60, request_id=f"good{which}{i}"))
                readers.append(asyncio.create_task(tokens_of(stream)))
        bad = await clients[1].add(request([6, 6, 13], request_id="bad"))
        told = [delta async for delta in bad]
        assert told[-1].error is not None
        assert await asyncio.gather(*readers) == [[17, 5 + i] * 60 for _ in clients for i in range(2)]
        assert supervisor.starts == 4
        stream = await clients[0].add(request([5], request_id="after"))
        assert await tokens_of(stream) == [5]


async def test_clients_learn_that_the_engine_is_given_up(tmp_path):
    async with two_clients(tmp_path) as (supervisor, clients):
        stream = await clients[0].add(request([17], max_tokens=10**6))
        supervisor.state.write(1, 3, given_up=True)
        try:
            await tokens_of(stream)
        except EngineDeadError as error:
            assert "it ended too often" in str(error)
        else:
            raise AssertionError("the stream goes on without an engine")

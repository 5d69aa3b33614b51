"""What listeners hear: every block that is in the cache, in order and numbered, live and replayed."""

import msgspec
import numpy as np
import pytest
import zmq
from tests.engine.engine_driver import capacity, make_engine, request, run

from headrace.core.errors import ConfigError
from headrace.engine.kv_events import END, EventPublisher
from headrace.policy.block_events import AllBlocksCleared, BlockRemoved, BlockStored
from headrace.policy.chain import links, namespace


def recording_engine(**device):
    return make_engine(capacity(**device), kv_events_endpoint="tcp://127.0.0.1:1")


def follow(events, known):
    """Apply events to a listener's idea of the cache: names with the tokens of their prefix."""
    for event in events:
        match event:
            case AllBlocksCleared():
                known.clear()
            case BlockRemoved(names):
                for name in names:
                    del known[name]
            case BlockStored(names, parent, token_ids, size):
                before = () if parent is None else known[parent]
                for i, name in enumerate(names):
                    before = (*before, *token_ids[i * size : (i + 1) * size])
                    assert name not in known
                    known[name] = before


def expected(prefixes, salt="", size=4):
    known = {}
    for prefix in prefixes:
        data = np.array(prefix, np.int32).tobytes()
        for i, name in enumerate(links(namespace("", salt), data, 4 * size)):
            known[name] = tuple(prefix[: size * (i + 1)])
    return known


def test_a_listener_knows_what_is_cached():
    engine, known = recording_engine(blocks=40), {}
    first = run(engine, [request("a", range(10), 4)])["a"]
    whole = [*range(10), *first.tokens[:-1]]
    follow(engine.take_events(), known)
    assert known == expected([whole])
    second = [0, 1, 2, 3, 4, 5, 30, 31, 32]
    run(engine, [request("b", second, 1)])
    follow(engine.take_events(), known)
    assert known == expected([whole, second])
    run(engine, [request("c", second, 1, cache_salt="x")])
    follow(engine.take_events(), known)
    assert known == expected([whole, second]) | expected([second], "x")
    assert engine.take_events() == []


def test_what_is_evicted_is_removed():
    engine, known = recording_engine(blocks=8, slots=2), {}
    prompts = [[i, *range(8, 8 + 2 * i + 5)] for i in range(6)]
    for i, prompt in enumerate(prompts):
        run(engine, [request(f"r{i}", prompt, 3)])
        follow(engine.take_events(), known)
    cache = engine._blocks.cache
    held = {name for b in np.flatnonzero(cache._owners[0]).tolist() if (name := cache.name_of(0, b)) is not None}
    assert set(known) == held
    assert 0 < len(held) <= 8


def test_nothing_is_recorded_unless_asked():
    engine = make_engine(capacity())
    run(engine, [request("a", range(10), 4)])
    assert engine.take_events() == []


@pytest.fixture
def sockets(tmp_path):
    context = zmq.Context()
    addresses = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    yield context, addresses
    context.destroy(linger=0)


def received(socket):
    assert socket.poll(5000), "no message"
    return socket.recv_multipart()


def test_batches_are_numbered_live_and_replayed(sockets):
    context, (address, replay) = sockets
    publisher = EventPublisher(address, replay, 1.0)
    listener = context.socket(zmq.SUB)
    listener.subscribe(b"")
    listener.connect(address)
    asker = context.socket(zmq.DEALER)
    asker.connect(replay)
    # Published before anybody listened: replay has it.
    stored = BlockStored([b"n" * 16], None, [1, 2, 3, 4], 4)
    publisher.publish([stored], 2.0)
    asker.send_multipart((b"", (0).to_bytes(8, "big")))
    assert publisher.replay.poll(5000)
    publisher.answer()
    assert received(asker)[1:] == [bytes(8), msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]]])]
    second = received(asker)
    assert int.from_bytes(second[1], "big") == 1
    fields = ["BlockStored", [b"n" * 16], None, [1, 2, 3, 4], 4, None, "device"]
    assert msgspec.msgpack.decode(second[2]) == [2.0, [fields]]
    assert received(asker)[1:] == [END, b""]
    # Live, once the subscription has arrived: numbers go on.
    number = 2
    while not listener.poll(20):
        publisher.publish([BlockRemoved([b"n" * 16])], 3.0)
        number += 1
    topic, seen, body = received(listener)
    assert topic == b"" and 2 <= int.from_bytes(seen, "big") < number
    assert msgspec.msgpack.decode(body) == [3.0, [["BlockRemoved", [b"n" * 16], "device"]]]
    publisher.publish([], 4.0)
    asker.send_multipart((b"", (number - 1).to_bytes(8, "big")))
    asker.send(b"nonsense")
    assert publisher.replay.poll(5000)
    publisher.answer()
    assert int.from_bytes(received(asker)[1], "big") == number - 1
    assert received(asker)[1] == END
    for socket in (publisher, listener, asker):
        socket.close()


def test_a_replay_is_whole_however_much_is_kept(sockets):
    context, (address, replay) = sockets
    publisher = EventPublisher(address, replay, 0.0)
    for _ in range(10_500):
        publisher.publish([BlockRemoved([b"n" * 16])], 1.0)
    asker = context.socket(zmq.DEALER)
    asker.connect(replay)
    asker.send_multipart((b"", bytes(8)))
    assert publisher.replay.poll(5000)
    publisher.answer()
    numbers = [int.from_bytes(received(asker)[1], "big", signed=True) for _ in range(10_001)]
    assert numbers == [*range(501, 10_501), -1]
    for socket in (publisher, asker):
        socket.close()


def test_one_who_asks_without_end_does_not_keep_the_engine(sockets):
    context, (address, replay) = sockets
    publisher = EventPublisher(address, replay, 0.0)
    asker = context.socket(zmq.DEALER)
    asker.connect(replay)
    for _ in range(3):
        asker.send_multipart((b"", bytes(8)))
    for _ in range(3):
        assert publisher.replay.poll(5000)
        publisher.answer()
        assert [received(asker)[1] for _ in range(2)] == [bytes(8), END]
        assert not asker.poll(0)
    asker.send_multipart((b"", bytes(100_000)))
    assert not publisher.replay.poll(200), "an overlong question was taken in"
    for socket in (publisher, asker):
        socket.close()


def test_an_address_that_cannot_be_bound_is_refused_by_name(sockets):
    _, (address, _) = sockets
    with pytest.raises(ConfigError, match="kv_events_endpoint"):
        EventPublisher("tcp://256.0.0.1:1", None, 0.0)
    with pytest.raises(ConfigError, match="kv_events_replay_endpoint"):
        EventPublisher(address, "tcp://256.0.0.1:1", 0.0)

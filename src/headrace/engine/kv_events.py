"""Sends what happens in the prefix cache to whoever listens (docs/kv-events.md): batches of events on a PUB socket,
numbered without a gap, and the latest of them again on a ROUTER socket for those who missed some. It never waits for
anybody.
"""

from collections import deque

import msgspec
import zmq

from headrace.core.errors import ConfigError
from headrace.policy.block_events import AllBlocksCleared, BlockEvent

END = (-1).to_bytes(8, "big", signed=True)
"""In the place of a number: a replay has ended."""
_KEPT = 10_000
"""Batches that can be replayed."""
_REPLAYED = 2 * _KEPT
"""Messages that wait for one who asked: a whole replay and more, so that only who asks without reading loses some."""
_QUESTION_BYTES = 1024
"""Who sends more than that in a frame is cut off."""
_QUEUED = 100_000
"""Batches that wait for a slow listener before some are dropped; it sees the gap in their numbers."""


class EventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a step did. ts: seconds since the epoch."""

    ts: float
    events: list[BlockEvent]


_encode = msgspec.msgpack.Encoder().encode


class EventPublisher:
    """The first batch says that all is cleared, since what listeners know is of an engine before this one. Raises
    ConfigError for an address that cannot be bound."""

    def __init__(self, endpoint: str, replay: str | None, now: float) -> None:
        self._context = zmq.Context()
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=_KEPT)
        self._number = 0
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.set_hwm(_QUEUED)
        self.replay: zmq.Socket[bytes] | None = None
        if replay is not None:
            self.replay = self._context.socket(zmq.ROUTER)
            self.replay.set(zmq.SNDHWM, _REPLAYED)
            self.replay.set(zmq.MAXMSGSIZE, _QUESTION_BYTES)
        try:
            _bind(self._publisher, "kv_events_endpoint", endpoint)
            if self.replay is not None and replay is not None:
                _bind(self.replay, "kv_events_replay_endpoint", replay)
        except ConfigError:
            self.close()
            raise
        self.publish([AllBlocksCleared()], now)

    def publish(self, events: list[BlockEvent], now: float) -> None:
        if not events:
            return
        number, body = self._number.to_bytes(8, "big"), _encode(EventBatch(now, events))
        self._number += 1
        self._sent.append((number, body))
        self._publisher.send_multipart((b"", number, body))

    def answer(self) -> None:
        """Send one listener again what it has asked for: from a number on, as far as it is kept. Others have their
        turn at the next call, so that steps go on between answers."""
        if self.replay is None or not int(self.replay.get(zmq.EVENTS)) & zmq.POLLIN:
            return
        frames = self.replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        listener, start = frames[0], frames[2]
        for number, body in self._sent:
            if number >= start:
                self.replay.send_multipart((listener, b"", number, body))
        self.replay.send_multipart((listener, b"", END, b""))

    def close(self) -> None:
        self._publisher.close(linger=0)
        if self.replay is not None:
            self.replay.close(linger=0)
        self._context.term()


def _bind(socket: zmq.Socket[bytes], field: str, endpoint: str) -> None:
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"{field} ({endpoint}) cannot be used: {error}", field=field) from error

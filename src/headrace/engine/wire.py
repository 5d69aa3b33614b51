"""Messages between API process and engine process: msgpack of these structs over ZeroMQ, never pickle. One
tagged union each way.

The engine answers every Add with Accepted or Refused before its first Outputs.
"""

from __future__ import annotations

import msgspec

from headrace.core.request import OutputDelta, Request

SOCKET_NAME = "engine.sock"
HEARTBEAT_NAME = "heartbeat"
"""Files in the folder that engine and API process share (mode 0700)."""


class Add(msgspec.Struct, tag=True, frozen=True):
    """replayed: an engine that is gone had accepted it, so this one may not refuse it for being too many."""

    request: Request
    replayed: bool = False


class Abort(msgspec.Struct, tag=True, frozen=True):
    request_ids: list[str]


class Hello(msgspec.Struct, tag=True, frozen=True):
    """A client's first word: it is answered by Stats and Ready, and Stats follow as steps go on."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    pass


class Accepted(msgspec.Struct, tag=True, frozen=True):
    request_id: str


class Refused(msgspec.Struct, tag=True, frozen=True):
    """retry_after (seconds) is set when the request could be taken later: HTTP 429."""

    request_id: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None


class Outputs(msgspec.Struct, tag=True, frozen=True):
    deltas: list[OutputDelta]


class Stats(msgspec.Struct, tag=True, frozen=True):
    """The engine's gauges and counters. step counts the steps that were begun."""

    step: int = 0
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    blocks_cached: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    finished: dict[str, int] = {}


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine is loaded and listens. describe: what it runs, for /version and doctor."""

    max_model_len: int
    vocab_size: int
    fingerprint: str
    blocks_total: int
    block_size: int
    describe: dict[str, str | int] = {}


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The engine could not start, or gives up; message is for the operator."""

    message: str


ToEngine = Add | Abort | Hello | Shutdown
FromEngine = Ready | Accepted | Refused | Outputs | Stats | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode

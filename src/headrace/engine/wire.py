"""Messages between API process and engine process: msgpack of these structs over ZeroMQ, never pickle. One
tagged union each way.

The engine answers every Add with Accepted or Refused before its first Outputs.
"""

import msgspec

from headrace.core.request import OutputDelta, Request
from headrace.policy.histogram import HistogramCounts
from headrace.policy.records import RequestRecord, StepRecord


class Add(msgspec.Struct, tag=True, frozen=True):
    """replayed: an engine that is gone had accepted it, so this one may not refuse it for being too many."""

    request: Request
    replayed: bool = False


class Abort(msgspec.Struct, tag=True, frozen=True):
    request_ids: list[str]


class Hello(msgspec.Struct, tag=True, frozen=True):
    """A client's first word: it is answered by Stats and Ready, and Stats follow as steps go on. pid: of its process;
    once that is gone, what it asked for is aborted."""

    pid: int = 0


class Inspect(msgspec.Struct, tag=True, frozen=True):
    """Asks for what became of a client's request (its id, or that of one of its sequences), and for the last steps."""

    number: int
    request_id: str = ""
    steps: int = 0


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


class Inspected(msgspec.Struct, tag=True, frozen=True):
    """The answer to the Inspect of this number. The newest step comes first."""

    number: int
    requests: list[RequestRecord] = []
    steps: list[StepRecord] = []


class Stats(msgspec.Struct, tag=True, frozen=True):
    """The engine's gauges and counters. step counts the steps that were begun. waiting_by_priority: requests that wait.
    predicted_wait: seconds that a new request of priority 0 would wait; oldest_wait: that the one has waited which came
    first. hits_by_tier: tokens found in the prefix cache. preemptions_by_kind: kind (swap, recompute), cause
    (blocks, priority) and how many. refused: by the error's code. latency_error: of the latency
    model, relative, lately. drafts: times that tokens were guessed ahead for a request; saved_seconds: what the
    accepted ones would have taken, less what guessing took."""

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
    waiting_tokens: int = 0
    waiting_by_priority: dict[int, int] = {}
    predicted_wait: float = 0.0
    oldest_wait: float = 0.0
    hits_by_tier: dict[str, int] = {}
    preemptions_by_kind: list[tuple[str, str, int]] = []
    refused: dict[str, int] = {}
    latency_error: float | None = None
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: list[int] = []
    saved_seconds: float = 0.0
    queue_seconds: HistogramCounts = HistogramCounts()
    inference_seconds: HistogramCounts = HistogramCounts()


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine is loaded and listens. describe: what it runs, for /version and doctor."""

    max_model_len: int
    vocab_size: int
    fingerprint: str
    blocks_total: int
    block_size: int
    describe: dict[str, str | int] = {}


ToEngine = Add | Abort | Hello | Inspect | Shutdown
FromEngine = Ready | Accepted | Refused | Outputs | Stats | Inspected

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode

"""What a client remembers of its live requests, so that another engine can go on where one ended: the same prompt and
seed, with the tokens that came so far, give the same tokens from there on (docs/decisions/engine-process.md).

Two crashes of the engine make whoever was in flight at both a suspect. Suspects are handed over one at a time, each
once the one before has brought something; one at which the engine ends twice more is at fault, and ends alone.
"""

from collections import deque
from collections.abc import Iterator

import msgspec

from headrace.core.request import OutputDelta, Request
from headrace.engine.output_stream import OutputStream

_SUSPECT_AFTER = 2
_TRIALS = 2
"""Ends of the engine while a suspect is tried that are held against it: one may come from outside."""


class LiveRequest:
    """A request, the stream that its reader holds, and what came of it so far."""

    __slots__ = ("_cached", "_crashes", "_redone", "_scored", "_tokens", "_trials", "request", "sent", "stream")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.stream = OutputStream(request.request_id)
        self.sent = False
        self._tokens: list[int] = []
        self._scored = 0
        # Prompt log-probabilities that a new engine brings again, and the reader has.
        self._redone = 0
        self._cached: int | None = None
        self._crashes = self._trials = 0

    @property
    def accepted(self) -> bool:
        """Whether an engine has taken it before."""
        return self.stream.accepted.done()

    def take(self, delta: OutputDelta) -> None:
        """Pass on what is new to the reader."""
        self._tokens += delta.token_ids
        if delta.prompt_logprobs is not None:
            known = min(self._redone, len(delta.prompt_logprobs))
            self._redone -= known
            delta.prompt_logprobs = delta.prompt_logprobs[known:]
            self._scored += len(delta.prompt_logprobs)
        if self._cached is not None:
            delta.cached_tokens = self._cached
        elif delta.token_ids:
            self._cached = delta.cached_tokens
        self.stream.put(delta)

    def as_replay(self) -> Request:
        """The request that goes on after what came so far."""
        return msgspec.structs.replace(self.request, output_ids=[*self.request.output_ids, *self._tokens])

    def lost(self) -> None:
        """The engine ended while it had this request: another is to go on with it."""
        self.sent = False
        self._redone = self._scored

    def suspected(self) -> bool:
        """Count the engine's end against it. Whether that has happened too often to be chance."""
        self._crashes += 1
        return self._crashes >= _SUSPECT_AFTER

    def failed_trial(self) -> bool:
        """The engine ended while this one was tried. Whether that has happened often enough."""
        self._trials += 1
        return self._trials >= _TRIALS

    def clear(self) -> None:
        """It was tried, and the engine went on."""
        self._crashes = self._trials = 0


class LiveRequests:
    """All live requests of a client by id, and which of them may be with the engine now."""

    def __init__(self) -> None:
        self._live: dict[str, LiveRequest] = {}
        self._suspects: deque[str] = deque()
        self._alone: str | None = None
        self.holding = False
        """Whether some may be kept back from the engine, since it ended."""

    def __len__(self) -> int:
        return len(self._live)

    @property
    def tries(self) -> bool:
        """Whether suspects are tried one at a time, or wait for it."""
        return self._alone is not None or any(suspect in self._live for suspect in self._suspects)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._live))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def get(self, request_id: str) -> LiveRequest | None:
        return self._live.get(request_id)

    def add(self, request: Request) -> LiveRequest:
        live = self._live[request.request_id] = LiveRequest(request)
        return live

    def pop(self, request_id: str) -> LiveRequest:
        """Forget a request that has ended."""
        if request_id == self._alone:
            self._alone = None
        return self._live.pop(request_id)

    def take(self, live: LiveRequest, delta: OutputDelta) -> None:
        """What an engine brought for a live request."""
        live.take(delta)
        if live.request.request_id == self._alone:
            live.clear()
            self._alone = None

    def crashed(self) -> LiveRequest | None:
        """The engine ended. Returns the request at fault, forgotten already, if it is known."""
        self.holding = True
        in_flight = [live for live in self._live.values() if live.sent]
        for live in in_flight:
            live.lost()
        if self._alone is not None:
            # Those beside it have been tried before.
            suspect = self._live[self._alone]
            if suspect.failed_trial():
                return self.pop(self._alone)
            self._suspects.appendleft(self._alone)
            self._alone = None
            return None
        self._suspects.extend(live.request.request_id for live in in_flight if live.suspected())
        return None

    def due(self) -> list[LiveRequest]:
        """Who is to be handed to the engine now. Each is taken to be with it from here on."""
        if self._alone is not None:
            return []
        while self._suspects:
            suspect = self._live.get(self._suspects.popleft())
            if suspect is not None:
                self._alone = suspect.request.request_id
                suspect.sent = True
                return [suspect]
        self.holding = False
        waiting = [live for live in self._live.values() if not live.sent]
        for live in waiting:
            live.sent = True
        return waiting

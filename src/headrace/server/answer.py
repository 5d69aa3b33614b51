"""What every answer and every chunk of one request carries alike: its id, time, model and fingerprint."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from headrace.server.protocol import ChatChunkChoice, Chunk, CompletionChoice, Usage
from headrace.server.service import Service

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Head:
    """with_usage: the client asked for usage in its stream, so every chunk has the field, null until the last."""

    id: str
    object: str
    created: int
    model: str
    fingerprint: str
    with_usage: bool

    def event(self, choices: list[ChatChunkChoice] | list[CompletionChoice], usage: Usage | None = None) -> bytes:
        """One server-sent event."""
        chunk = Chunk(
            id=self.id,
            object=self.object,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage if self.with_usage else msgspec.UNSET,
            system_fingerprint=self.fingerprint,
        )
        return b"data: " + _encode(chunk) + b"\n\n"


def new_head(service: Service, request_id: str, kind: str, *, with_usage: bool = False) -> Head:
    return Head(
        request_id, kind, int(time.time()), service.settings.model_name, service.client.ready.fingerprint, with_usage
    )

"""What every answer and every chunk of one request carries alike: its id, time, model and fingerprint, and which of the
fields that only some clients want.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.server import protocol
from headrace.server.generation import Generation
from headrace.server.service import Service

_encode = msgspec.json.Encoder().encode
_END = b"}\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """beginning: of every event, up to its choices; events come with every token, so what all share is encoded once.
    with_usage: the client asked for usage in its stream, so every chunk has the field, null until the last, or with
    continuous_usage the usage so far. with_token_ids: it asked for the ids of prompt and answer."""

    id: str
    object: str
    created: int
    model: str
    fingerprint: str
    beginning: bytes
    with_usage: bool
    continuous_usage: bool
    with_token_ids: bool

    def event(
        self,
        generation: Generation,
        choices: list[protocol.ChatChunkChoice] | list[protocol.CompletionChoice],
        *,
        prompt_token_ids: list[int] | protocol.Unset = msgspec.UNSET,
    ) -> bytes:
        """One server-sent event. Without choices it is the last one, which has the whole usage."""
        usage: protocol.Usage | protocol.Unset | None = msgspec.UNSET
        if self.with_usage:
            usage = generation.usage() if self.continuous_usage or not choices else None
        parts = [self.beginning, _encode(choices)]
        if usage is not msgspec.UNSET:
            parts += (b',"usage":', _encode(usage))
        if prompt_token_ids is not msgspec.UNSET:
            parts += (b',"prompt_token_ids":', _encode(prompt_token_ids))
        parts.append(_END)
        return b"".join(parts)

    def token_ids(self, ids: Sequence[int]) -> list[int] | protocol.Unset:
        """These ids, if the client asked for them."""
        return list(ids) if self.with_token_ids else msgspec.UNSET


def new_head(service: Service, request_id: str, kind: str, body: protocol.SamplingBody) -> Head:
    options, created = body.stream_options, int(time.time())
    model, fingerprint = service.settings.model_name, service.client.ready.fingerprint
    alike = {"id": request_id, "object": kind, "created": created, "model": model, "system_fingerprint": fingerprint}
    continuous = bool(options and options.continuous_usage_stats)
    return Head(
        request_id,
        kind,
        created,
        model,
        fingerprint,
        beginning=b"data: " + _encode(alike)[:-1] + b',"choices":',
        with_usage=bool(options and options.include_usage) or continuous,
        continuous_usage=continuous,
        with_token_ids=body.return_token_ids is True,
    )

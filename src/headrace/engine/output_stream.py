"""OutputStream: one request's deltas, between the engine's socket and whoever reads them. What the reader has not taken
yet is kept as one merged delta, so a slow reader holds at most the request's own output and never stops the engine.
"""

from __future__ import annotations

import asyncio

from headrace.core.request import OutputDelta


class OutputStream:
    """An iterator that ends after the delta with a finish_reason. accepted: done once the engine has taken the request,
    or with its refusal as the exception."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending: OutputDelta | None = None
        self._arrived = asyncio.Event()
        self._ended = False

    def put(self, delta: OutputDelta) -> None:
        if self._pending is None:
            self._pending = delta
            self._arrived.set()
        else:
            _merge(self._pending, delta)

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> OutputDelta:
        if self._ended:
            raise StopAsyncIteration
        await self._arrived.wait()
        delta = self._pending
        assert delta is not None
        self._pending = None
        self._arrived.clear()
        self._ended = delta.finish_reason is not None
        return delta


def _merge(into: OutputDelta, later: OutputDelta) -> None:
    into.token_ids = into.token_ids + later.token_ids
    if later.logprobs is not None:
        into.logprobs = (into.logprobs or []) + later.logprobs
    if later.prompt_logprobs is not None:
        into.prompt_logprobs = (into.prompt_logprobs or []) + later.prompt_logprobs
    into.finish_reason = later.finish_reason
    into.stop_token = later.stop_token
    into.cached_tokens = max(into.cached_tokens, later.cached_tokens)
    into.error = later.error

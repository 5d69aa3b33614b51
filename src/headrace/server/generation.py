"""The engine's side of one HTTP request: its sequences are begun together, their deltas arrive as one stream, and
whatever still runs when the answer ends, for any reason, is aborted at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

from headrace.core.errors import EngineDeadError
from headrace.core.request import FinishReason, OutputDelta, Request
from headrace.engine.completion import Choice
from headrace.engine.text_stream import TextDelta
from headrace.server.errors import INTERNAL_MESSAGE, GenerationError
from headrace.server.protocol import CompletionTokensDetails, PromptTokensDetails, Usage
from headrace.server.service import Service

QUEUED_DELTAS = 256
ABORTED_MESSAGE = "The server ended this request before it was finished."


@dataclass(slots=True)
class Sequence:
    """One choice of one prompt. index is its place in the answer. echo is the prompt's text if asked for."""

    index: int
    request: Request
    choice: Choice
    echo: str | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None


@dataclass(slots=True)
class Generation:
    """All sequences of one answer. Use as a context manager: entering hands them to the engine (and raises its
    refusal), leaving aborts those that are not finished. arrival is on time.monotonic()."""

    service: Service
    sequences: list[Sequence]
    arrival: float
    first_token_at: float | None = None
    _open: dict[str, Sequence] = field(default_factory=dict)
    _sources: list[AsyncIterator[OutputDelta]] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _pumps: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Generation:
        self._stack.enter_context(self.service.generating([s.request.request_id for s in self.sequences]))
        self._open = {s.request.request_id: s for s in self.sequences}
        try:
            begun = await asyncio.gather(*(self._begin(s.request) for s in self.sequences), return_exceptions=True)
            for result in begun:
                if isinstance(result, BaseException):
                    raise result
                self._sources.append(result)
        except BaseException:
            await self._close(begun=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(begun=True)

    async def _begin(self, request: Request) -> AsyncIterator[OutputDelta]:
        if request.max_tokens == 0 and request.params.prompt_logprobs is None:
            return _nothing(request)
        return await self.service.client.add(request)

    async def deltas(self) -> AsyncIterator[tuple[Sequence, TextDelta]]:
        """What is new, in the order it arrives; ends when every sequence has finished. Raises GenerationError
        when the engine ends one with an error, EngineDeadError when it goes away."""
        async for delta in self._sources[0] if len(self._sources) == 1 else self._gathered():
            sequence = self._open.get(delta.request_id)
            if sequence is None:
                continue
            choice = sequence.choice
            new = choice.push(delta)
            self._observe(sequence, new)
            if choice.finish_reason is not None:
                await self._finish(sequence, ended_by_engine=delta.finish_reason is not None)
            yield sequence, new
            if not self._open:
                return
        raise EngineDeadError("the engine's stream ended without a finish reason")

    async def run(self) -> None:
        """To the end of every sequence. Raises as deltas() does."""
        async for _ in self.deltas():
            pass

    def usage(self) -> Usage:
        """Each prompt counts once, however many choices it has; cached tokens are those its first choice found."""
        first = [s for s in self.sequences if s.request.choice == 0]
        prompt = sum(len(s.request.prompt_ids) for s in first)
        generated = sum(len(s.choice.token_ids) for s in self.sequences)
        cached = sum(s.choice.cached_tokens for s in first)
        usage = Usage(prompt, generated, prompt + generated, PromptTokensDetails(cached))
        if drafted := sum(s.choice.drafted for s in self.sequences):
            accepted = sum(s.choice.accepted for s in self.sequences)
            usage.completion_tokens_details = CompletionTokensDetails(accepted, drafted - accepted)
        return usage

    async def _gathered(self) -> AsyncIterator[OutputDelta]:
        """The deltas of several sequences, as they arrive."""
        queue: asyncio.Queue[OutputDelta | Exception] = asyncio.Queue(QUEUED_DELTAS)
        self._pumps = [asyncio.create_task(_pump(source, queue)) for source in self._sources]
        while True:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            yield item

    def _observe(self, sequence: Sequence, new: TextDelta) -> None:
        if not new.token_ids:
            return
        now = time.monotonic()
        metrics = self.service.metrics
        if self.first_token_at is None:
            self.first_token_at = now
        if sequence.last_token_at is None:
            metrics.first_token(now - self.arrival)
            sequence.first_token_at = now
        else:
            metrics.next_token(now - sequence.last_token_at)
        sequence.last_token_at = now

    async def _finish(self, sequence: Sequence, *, ended_by_engine: bool) -> None:
        reason = sequence.choice.finish_reason or FinishReason.ERROR
        del self._open[sequence.request.request_id]
        self._count(sequence, reason)
        if not ended_by_engine:
            await self.service.client.abort([sequence.request.request_id])
        if reason is FinishReason.ERROR:
            raise GenerationError(sequence.choice.error or INTERNAL_MESSAGE, sequence.choice.code)
        if reason is FinishReason.ABORT:
            raise GenerationError(ABORTED_MESSAGE)

    def _count(self, sequence: Sequence, reason: FinishReason) -> None:
        self.service.metrics.ended(
            reason,
            time.monotonic() - self.arrival,
            len(sequence.request.prompt_ids),
            len(sequence.choice.token_ids),
        )
        later = len(sequence.choice.token_ids) - 1
        if later > 0 and sequence.first_token_at is not None and sequence.last_token_at is not None:
            self.service.metrics.per_token((sequence.last_token_at - sequence.first_token_at) / later)

    async def _close(self, *, begun: bool) -> None:
        left, self._open = self._open, {}
        for pump in self._pumps:
            pump.cancel()
        for sequence in left.values() if begun else ():
            self._count(sequence, FinishReason.ABORT)
        try:
            if left:
                await self.service.client.abort(list(left))
        finally:
            self._stack.close()


async def _pump(source: AsyncIterator[OutputDelta], queue: asyncio.Queue[OutputDelta | Exception]) -> None:
    """Move one sequence's deltas to the answer's queue; a full queue makes it wait."""
    try:
        async for delta in source:
            await queue.put(delta)
            if delta.finish_reason is not None:
                return
        await queue.put(EngineDeadError("the engine's stream ended without a finish reason"))
    except EngineDeadError as error:
        await queue.put(error)


async def _nothing(request: Request) -> AsyncIterator[OutputDelta]:
    """max_tokens 0 asks for no tokens, so the engine need not see it."""
    yield OutputDelta(request.request_id, finish_reason=FinishReason.LENGTH)

"""A real engine behind the API, in this event loop: policy and an executor joined, with a token for each byte. The
executor is NullExecutor, whose tokens show every wrong block, or a tiny decoder on the kernels.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from tests.server.fake_engine import VOCAB, ByteTokenizer, PlainTemplate
from tests.server.serving import settings
from tests.tiny_models import RandomWeights, tiny_spec

from headrace.core.config import Config
from headrace.core.request import FinishReason, OutputDelta, Request
from headrace.engine.client_protocol import Health, HealthState
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity, Executor
from headrace.engine.null_executor import Faults, NullExecutor
from headrace.engine.output_stream import OutputStream
from headrace.engine.wire import Ready, Stats
from headrace.models.decoder_weights import DecoderWeights
from headrace.models.families.family import HUB_NAMES
from headrace.models.lowering import lower
from headrace.policy.speculation import Drafter
from headrace.server.app import create_app
from headrace.worker.assembly import assemble
from headrace.worker.devices import cpu_device
from headrace.worker.grammar import Compile, no_grammars

MAX_LEN = 256
BLOCK = 16


def null_executor(
    *, blocks: int = 200, slots: int = 8, max_len: int = MAX_LEN, faults: Faults | None = None
) -> NullExecutor:
    return NullExecutor(Capacity(slots, BLOCK, (blocks,), (None,), max_len, VOCAB), faults)


@functools.cache
def _program() -> Any:
    weights = DecoderWeights(RandomWeights(tiny_spec(vocab_size=VOCAB), "q8"), HUB_NAMES)
    return lower(tiny_spec(vocab_size=VOCAB), weights, quantization="auto", kv_dtype="bf16", block_size=BLOCK)


def tiny_executor(*, blocks: int = 200, slots: int = 8, compile_grammar: Compile = no_grammars) -> Executor:
    """A decoder of two layers with random weights: its logits are real, its text is noise."""
    program = _program()
    return assemble(
        dataclasses.replace(program, matrices=dict(program.matrices)),
        cpu_device(1),
        num_slots=slots,
        num_blocks=(blocks,),
        windows=(None,),
        max_model_len=MAX_LEN,
        max_tokens=64,
        compile_grammar=compile_grammar,
    )


class LocalEngine:
    """An EngineClient. Steps are taken while there is work, with a turn for everybody else between them; they wait
    while `paused`."""

    def __init__(self, executor: Executor | None = None, drafter: Drafter | None = None, **settings: Any) -> None:
        self.executor = executor or null_executor()
        config = Config(max_num_seqs=8, max_num_batched_tokens=64, **settings)
        self.engine = Engine(self.executor, config, drafter=drafter)
        self.paused = False
        self._streams: dict[str, OutputStream] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    @property
    def ready(self) -> Ready:
        has = self.executor.capacity
        return Ready(has.max_model_len, VOCAB, "fp-local", sum(has.num_blocks), BLOCK, {"model": "local"})

    async def add(self, request: Request) -> AsyncIterator[OutputDelta]:
        self.engine.add(request, time.monotonic())
        stream = self._streams[request.request_id] = OutputStream(request.request_id)
        if self._stepping is None:
            self._stepping = asyncio.create_task(self._step())
        self._woken.set()
        return stream

    async def abort(self, request_ids: list[str]) -> None:
        self.engine.abort(request_ids, time.monotonic())
        for request_id in request_ids:
            if stream := self._streams.pop(request_id, None):
                stream.put(OutputDelta(request_id, finish_reason=FinishReason.ABORT))
        self._woken.set()

    def stats(self) -> Stats:
        return self.engine.stats()

    def health(self) -> Health:
        return Health(HealthState.HEALTHY)

    @property
    def idle(self) -> bool:
        return not self.engine.has_work and self.engine.stats().blocks_used == 0

    async def _step(self) -> None:
        while True:
            await asyncio.sleep(0)
            if self.paused or not self.engine.has_work:
                self._woken.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), 0.01)
                continue
            for delta in self.engine.step(time.monotonic):
                stream = self._streams.get(delta.request_id)
                if stream is not None:
                    stream.put(delta)
                    if delta.finish_reason is not None:
                        del self._streams[delta.request_id]

    async def close(self) -> None:
        if self._stepping is not None:
            self._stepping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stepping


@contextlib.asynccontextmanager
async def app_over(engine: LocalEngine, *, bos: bool = False, **changes: Any) -> AsyncIterator[Starlette]:
    app = create_app(engine, ByteTokenizer(bos=bos), PlainTemplate(), settings(**changes))
    try:
        yield app
    finally:
        app.state.service.close()
        await engine.close()

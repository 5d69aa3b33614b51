"""Everything one app works with: what create_app() was given, what is derived from it once, and the state of draining.
Handlers take it from app.state.service.
"""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from starlette.requests import Request

from headrace.core.errors import RequestError
from headrace.core.request import SamplingParams
from headrace.engine.client_protocol import EngineClient
from headrace.engine.completion import Limits, SeedSource
from headrace.engine.text_stream import Detokenizer
from headrace.server.body import BodyReader
from headrace.server.counts import Counts
from headrace.server.errors import HttpError
from headrace.server.faces import ChatTemplate, GrammarCompiler, Tokenizer
from headrace.server.metrics import Metrics
from headrace.server.settings import ServerSettings


class Service:
    """One served model. `live` counts generations under way; drain() makes new ones 503 while those finish, and
    end_live() ends those that do not."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        settings: ServerSettings,
        grammars: GrammarCompiler | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.settings = settings
        self.grammars = grammars
        self.limits = Limits(client.ready.max_model_len, client.ready.vocab_size, settings.eos_ids)
        self.seeds = SeedSource(settings.seed)
        self.metrics = Metrics(settings.model_name, counts)
        self.bodies = BodyReader(
            max_bytes=settings.max_body_bytes,
            max_values=settings.max_body_values,
            max_containers=settings.max_body_containers,
            offload_bytes=settings.offload_bytes,
            large_bytes=settings.large_body_bytes,
            large_slots=settings.large_bodies,
            timeout=settings.body_timeout,
        )
        self.draining = False
        self.live = 0
        self._live_ids: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @cached_property
    def max_prompt_bytes(self) -> int:
        """UTF-8 bytes that no prompt within the context can exceed: every token at its longest."""
        longest = max(len(self.tokenizer.token_bytes(t)) for t in range(self.limits.vocab_size))
        return longest * self.limits.max_model_len

    def encode_word(self, word: str) -> list[int]:
        """Token ids of a bad word, by themselves."""
        return self.tokenizer.encode(word, add_special_tokens=False)

    def check_model(self, name: str | None) -> None:
        """A request without a model means the one served. Raises HttpError 404 for any other."""
        if name is not None and name != self.settings.model_name:
            raise HttpError(
                404,
                f"model {name[:256]!r} is not served here; this server has {self.settings.model_name!r}",
                param="model",
                code="model_not_found",
            )

    def check_prompt_bytes(self, size: int, param: str) -> None:
        """Refuse a text too long for the context before spending time on its tokens."""
        if size >= self.settings.offload_bytes and size > self.max_prompt_bytes:
            raise RequestError(
                f"{param}: {size} bytes of text cannot fit this model's context of {self.limits.max_model_len} "
                f"tokens, which is at most {self.max_prompt_bytes} bytes: shorten it",
                param=param,
                code="context_length_exceeded",
            )

    def check_taking_requests(self) -> None:
        if self.draining:
            raise HttpError(
                503,
                "this server is shutting down and takes no new requests",
                code="shutting_down",
                headers={"Retry-After": "5", "Connection": "close"},
            )

    def new_detokenizer(self, params: SamplingParams, shown: tuple[str, ...] = ()) -> Detokenizer:
        return self.tokenizer.detokenizer(skip_special_tokens=params.skip_special_tokens, shown=shown)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.uuid4().hex}"

    def drain(self) -> None:
        """Take no new generations. Those under way go on; drained() waits for them."""
        self.draining = True

    async def drained(self) -> None:
        await self._idle.wait()

    async def end_live(self) -> None:
        """End what still runs: its clients get an error, in streams as the last event."""
        await self.client.abort(list(self._live_ids))

    @contextmanager
    def generating(self, request_ids: list[str]) -> Iterator[None]:
        self.live += 1
        self._live_ids.update(request_ids)
        self._idle.clear()
        try:
            yield
        finally:
            self._live_ids.difference_update(request_ids)
            self.live -= 1
            if not self.live:
                self._idle.set()

    def close(self) -> None:
        self.bodies.close()
        if self.grammars is not None:
            self.grammars.close()


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service

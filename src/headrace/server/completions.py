"""POST /v1/completions: one or several prompts, as text or token ids, each with n choices; with echo the prompt
leads the text, and with logprobs its log-probabilities lead the lists.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.core.errors import RequestError
from headrace.engine.completion import Choice, build_requests, with_bad_words
from headrace.engine.text_stream import TextDelta
from headrace.server.answer import Head, new_head
from headrace.server.beginning import begin
from headrace.server.fields import parse
from headrace.server.generation import Generation, Sequence
from headrace.server.logprobs import CompletionLogprobsWriter, TokenNames, join, prompt_logprobs
from headrace.server.prompts import read_prompts, truncated
from headrace.server.protocol import (
    Completion,
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
    Unset,
)
from headrace.server.sampling import sampling_params
from headrace.server.service import Service
from headrace.server.sse import EventStream, whole_answer

DEFAULT_MAX_TOKENS = 16
"""What OpenAI's completions generate when max_tokens is left out."""


async def completions(request: Request) -> Response | ASGIApp:
    generation, request_id, body, _ = await begin(request, "cmpl", _prepare)
    service = generation.service
    answer = CompletionAnswer(service, generation, new_head(service, request_id, "text_completion", body), body)
    if body.stream:
        return EventStream(generation, answer.events(), service.settings.stall_timeout)
    return await whole_answer(request, generation, answer.whole)


def _prepare(service: Service, fields: dict[str, Any], request_id: str) -> tuple[CompletionBody, list[Sequence], None]:
    """Everything before the engine: checks and tokens."""
    body = parse(fields, CompletionBody)
    service.check_model(body.model)
    params = sampling_params(
        body,
        service.settings.sampling_defaults,
        max_tokens=min(DEFAULT_MAX_TOKENS, service.limits.max_model_len)
        if body.max_tokens is None
        else body.max_tokens,
        most=service.limits.max_model_len,
        logprobs=body.logprobs,
        echoed_logprobs=body.logprobs if body.echo else None,
    )
    params = with_bad_words(params, service.encode_word)
    prompts = read_prompts(service, body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if len(prompts) * params.n > service.settings.max_sequences:
        raise RequestError(
            f"n ({params.n}) times the number of prompts ({len(prompts)}) may be at most "
            f"{service.settings.max_sequences}: ask for fewer choices, or send several requests",
            param="n",
        )
    sequences: list[Sequence] = []
    for number, prompt in enumerate(prompts):
        ids = truncated(service, prompt.ids, body, body.max_tokens)
        requests = build_requests(
            f"{request_id}-{number}",
            ids,
            params,
            service.limits,
            service.seeds,
            cache_salt=body.cache_salt or "",
            cache_hint=body.cache_hint,
            num_speculative_tokens=body.num_speculative_tokens,
        )
        echo = None
        if body.echo:
            whole = prompt.text is not None and len(ids) == len(prompt.ids)
            echo = prompt.text if whole else service.tokenizer.decode(ids)
        sequences += [
            Sequence(number * params.n + r.choice, r, Choice.of(r, service.new_detokenizer(params)), echo)
            for r in requests
        ]
    return body, sequences, None


@dataclass(slots=True)
class _Writing:
    """One choice's answer so far: whether its echo is out, whether anything is, and its log-probabilities' writer."""

    echoed: bool
    begun: bool
    logprobs: CompletionLogprobsWriter | None
    pieces: list[CompletionLogprobs] = field(default_factory=list)


class CompletionAnswer:
    """Writes one generation as a text completion."""

    def __init__(self, service: Service, generation: Generation, head: Head, body: CompletionBody) -> None:
        self._service = service
        self._generation = generation
        self._head = head
        self._prompt_top = body.prompt_logprobs
        names = TokenNames(service.tokenizer, as_ids=body.return_tokens_as_token_ids is True)
        self._writing = [
            _Writing(
                echoed=s.echo is None,
                begun=False,
                logprobs=None if body.logprobs is None else CompletionLogprobsWriter(names, body.logprobs),
            )
            for s in generation.sequences
        ]

    async def whole(self) -> bytes:
        texts: list[list[str]] = [[] for _ in self._generation.sequences]
        async for sequence, new in self._generation.deltas():
            for piece in self._pieces(sequence, new):
                texts[sequence.index].append(piece.text)
                if piece.logprobs is not None:
                    self._writing[sequence.index].pieces.append(piece.logprobs)
        return msgspec.json.encode(
            Completion(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                choices=[self._choice(s, "".join(texts[s.index])) for s in self._generation.sequences],
                usage=self._generation.usage(),
                system_fingerprint=self._head.fingerprint,
            )
        )

    async def events(self) -> AsyncIterator[bytes]:
        async for sequence, new in self._generation.deltas():
            for piece in self._pieces(sequence, new):
                writing = self._writing[sequence.index]
                if not writing.begun:
                    writing.begun = True
                    piece.prompt_token_ids = self._head.token_ids(sequence.request.prompt_ids)
                yield self._head.event(self._generation, [piece])
        if self._head.with_usage:
            yield self._head.event(self._generation, [])

    def _choice(self, sequence: Sequence, text: str) -> CompletionChoice:
        writing, choice = self._writing[sequence.index], sequence.choice
        logprobs = None if writing.logprobs is None else join(writing.pieces)
        scored: PromptLogprobs | Unset = msgspec.UNSET
        if self._prompt_top is not None:
            scored = prompt_logprobs(self._service.tokenizer, choice.prompt_logprobs or [], self._prompt_top)
        return CompletionChoice(
            sequence.index,
            text,
            logprobs,
            choice.finish_reason,
            choice.stop_reason,
            scored,
            self._head.token_ids(sequence.request.prompt_ids),
            self._head.token_ids(choice.token_ids),
        )

    def _pieces(self, sequence: Sequence, new: TextDelta) -> list[CompletionChoice]:
        """What one delta adds: the echoed prompt, once all of its log-probabilities are there, then new text."""
        writing = self._writing[sequence.index]
        pieces: list[CompletionChoice] = []
        if not writing.echoed and (new.token_ids or new.finish_reason is not None):
            writing.echoed = True
            pieces.append(CompletionChoice(sequence.index, sequence.echo or "", self._echoed(sequence)))
        logprobs = None
        if writing.logprobs is not None and new.logprobs:
            logprobs = writing.logprobs.write(new.logprobs)
        ids = self._head.token_ids(new.token_ids)
        if new.text or logprobs is not None or ids or new.finish_reason is not None:
            pieces.append(
                CompletionChoice(sequence.index, new.text, logprobs, new.finish_reason, new.stop_reason, token_ids=ids)
            )
        return pieces

    def _echoed(self, sequence: Sequence) -> CompletionLogprobs | None:
        writer = self._writing[sequence.index].logprobs
        if writer is None:
            return None
        return writer.prompt(sequence.request.prompt_ids, sequence.choice.prompt_logprobs or [])

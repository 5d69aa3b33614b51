"""A model in this process, for commands that show text as it is made: a prompt goes in, pieces of text come out
step by step. Closing what stream() returns stops the generation and frees what it held.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core.config import Config
from headrace.core.errors import ConfigError, EngineError
from headrace.core.request import SamplingParams
from headrace.engine.completion import Choice, Limits, SeedSource, build_requests
from headrace.engine.drive import drive
from headrace.launch import build_engine
from headrace.models.sources import locate_model
from headrace.models.text import load_text

# Where neither the caller nor the model says: as much as the context holds, and neither dull nor wild.
DEFAULTS: Mapping[str, Any] = {"temperature": 0.7, "max_tokens": None}


class LocalModel:
    """Loads the model of a Config, fetched first if need be. for_chat: raises ConfigError at once if the model has no
    chat template."""

    def __init__(self, config: Config, *, for_chat: bool = False) -> None:
        located = locate_model(config)
        self._text = load_text(Path(located.model))
        if for_chat and self._text.chat_template is None:
            raise ConfigError(f"{config.model} has no chat template: use `headrace generate`", field="model")
        built = build_engine(located)
        self._engine = built.engine
        self._limits = Limits(built.ready.max_model_len, built.ready.vocab_size, self._text.tokenizer.eos_ids)
        self._seeds = SeedSource(config.seed)
        self._asked = 0

    def complete(self, prompt: str, sampling: Mapping[str, Any]) -> Generator[str, None, None]:
        """Pieces of what follows the prompt."""
        return self._stream(self._text.tokenizer.encode(prompt, param="prompt"), sampling)

    def answer(self, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> Generator[str, None, None]:
        """Pieces of the answer to a conversation, by a model loaded for_chat."""
        assert self._text.chat_template is not None, "chat with a model that was not loaded for it"
        return self._stream(self._text.chat_template.encode(messages), sampling)

    def _stream(self, prompt_ids: list[int], sampling: Mapping[str, Any]) -> Generator[str, None, None]:
        params = SamplingParams(**{**DEFAULTS, **self._text.sampling_defaults, **sampling})
        self._asked += 1
        requests = build_requests(f"local-{self._asked}", prompt_ids, params, self._limits, self._seeds)
        detokenizer = self._text.tokenizer.detokenizer(skip_special_tokens=params.skip_special_tokens)
        choice = Choice.of(requests[0], detokenizer)
        steps = drive(self._engine, requests, time.monotonic)
        try:
            for deltas in steps:
                for delta in deltas:
                    yield choice.push(delta).text
                if choice.error is not None:
                    raise EngineError(choice.error)
                if choice.finished:
                    return
        finally:
            steps.close()

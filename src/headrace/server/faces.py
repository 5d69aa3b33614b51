"""What the server asks of a tokenizer and a chat template. The models room has the real ones; api_process.py hands
them in, so that this room imports neither.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from headrace.core.structured import StructuredOutputsParams
from headrace.engine.text_stream import Detokenizer


class Tokenizer(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of text, in which special tokens' names are just text."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str: ...

    def token_bytes(self, token: int, /) -> bytes:
        """The bytes that a token stands for; a special token's are its name's."""

    def detokenizer(self, *, skip_special_tokens: bool = True, shown: tuple[str, ...] = ()) -> Detokenizer:
        """A fresh incremental detokenizer for one sequence. shown: special tokens that are not skipped."""


class ChatTemplate(Protocol):
    @property
    def variables(self) -> frozenset[str]:
        """Names that the template reads."""

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation; what looks like a special token inside a message stays text. more: values of
        the template's own variables. Raises RequestError when the template refuses the conversation."""


class GrammarCompiler(Protocol):
    def compile(self, wanted: StructuredOutputsParams, /) -> Future[Any]:
        """Done once the form is understood; its exception is the RequestError that says what is not."""

    def close(self) -> None: ...

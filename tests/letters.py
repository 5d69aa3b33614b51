"""A vocabulary for tests of structured output: tokens are one or two printable characters, the last one ends."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from headrace.core.structured import StructuredOutputsParams
from headrace.models.grammar import GrammarCompiler


class Letters:
    """size tokens: the first 94 are the printable characters, then pairs of them, then the token that ends."""

    bos_id = None

    def __init__(self, size: int) -> None:
        self.vocab_size = size
        self.eos_ids = (size - 1,)
        self.special_ids = frozenset(self.eos_ids)

    def token_bytes(self, token: int, /) -> bytes:
        if token in self.special_ids:
            return b"<end>"
        first, second = token % 94 + 32, (token // 94 * 7 + token) % 94 + 32
        return bytes([first] if token < 94 else [first, second])

    def ids(self, text: str) -> list[int]:
        return [ord(character) - 32 for character in text]

    def text(self, ids: list[int]) -> str:
        return b"".join(self.token_bytes(i) for i in ids if i not in self.special_ids).decode()


def letters_compiler(vocab_size: int) -> GrammarCompiler:
    return GrammarCompiler(lambda: Letters(vocab_size), vocab_size)


def matcher(compiler: GrammarCompiler, **form: Any) -> Any:
    future: Future[Any] = compiler.compile(StructuredOutputsParams(**form))
    return future.result().deep_copy()

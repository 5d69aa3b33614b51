"""Log-probabilities in OpenAI's two shapes: objects with bytes for chat, parallel lists with text offsets for text
completions. A token that is no whole UTF-8 text is written bytes:\\xNN, so that two of them never look alike.
"""

from __future__ import annotations

import codecs

from headrace.core.request import TokenLogprobs
from headrace.server.faces import Tokenizer
from headrace.server.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob


def token_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokenizer: Tokenizer, logprobs: list[TokenLogprobs], top: int) -> ChatLogprobs:
    """One entry a token; `top` alternatives each, likeliest first."""
    content = []
    for entry in logprobs:
        data = tokenizer.token_bytes(entry.token)
        alternatives = []
        for token, logprob in entry.top[:top]:
            other = tokenizer.token_bytes(token)
            alternatives.append(TopLogprob(token_text(other), logprob, list(other)))
        content.append(TokenLogprob(token_text(data), entry.logprob, list(data), alternatives))
    return ChatLogprobs(content)


class CompletionLogprobsWriter:
    """Writes one choice's log-probabilities piece by piece, keeping count of where in the text a token starts."""

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def prompt(self, prompt_ids: list[int], logprobs: list[TokenLogprobs]) -> CompletionLogprobs:
        """An echoed prompt: its first token has no log-probability."""
        written = CompletionLogprobs([], [], [], [])
        self._add(written, prompt_ids[0], None, None)
        for entry in logprobs:
            self._add(written, entry.token, entry.logprob, entry.top)
        return written

    def write(self, logprobs: list[TokenLogprobs]) -> CompletionLogprobs:
        written = CompletionLogprobs([], [], [], [])
        for entry in logprobs:
            self._add(written, entry.token, entry.logprob, entry.top)
        return written

    def _add(
        self, written: CompletionLogprobs, token: int, logprob: float | None, top: list[tuple[int, float]] | None
    ) -> None:
        data = self._tokenizer.token_bytes(token)
        written.text_offset.append(self._offset)
        written.tokens.append(token_text(data))
        written.token_logprobs.append(logprob)
        written.top_logprobs.append(None if top is None else self._alternatives(token, logprob, top))
        self._offset += len(self._decoder.decode(data))

    def _alternatives(self, token: int, logprob: float | None, top: list[tuple[int, float]]) -> dict[str, float]:
        """The likeliest tokens, and the one taken, by text: with equal texts the likelier stays."""
        shown: dict[str, float] = {}
        for other, value in top[: self._top]:
            shown.setdefault(token_text(self._tokenizer.token_bytes(other)), value)
        if logprob is not None:
            shown.setdefault(token_text(self._tokenizer.token_bytes(token)), logprob)
        return shown


def join(pieces: list[CompletionLogprobs]) -> CompletionLogprobs:
    whole = CompletionLogprobs([], [], [], [])
    for piece in pieces:
        whole.text_offset += piece.text_offset
        whole.token_logprobs += piece.token_logprobs
        whole.tokens += piece.tokens
        whole.top_logprobs += piece.top_logprobs
    return whole

"""Log-probabilities in OpenAI's two shapes: objects with bytes for chat, parallel lists with text offsets for text
completions. A token that is no whole UTF-8 text is written bytes:\\xNN, so that two of them never look alike.
"""

import codecs
from collections.abc import Sequence

from headrace.core.request import TokenLogprobs
from headrace.server.faces import Tokenizer
from headrace.server.protocol import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)


def token_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class TokenNames:
    """How tokens are written: by their text, or as token_id:N where a client asked for that."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self.bytes_of = tokenizer.token_bytes
        self._as_ids = as_ids

    def __call__(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else token_text(self.bytes_of(token))


def chat_logprobs(names: TokenNames, logprobs: list[TokenLogprobs], top: int) -> ChatLogprobs:
    """One entry a token; `top` alternatives each, likeliest first."""
    return ChatLogprobs(
        [
            TokenLogprob(
                names(entry.token),
                entry.logprob,
                list(names.bytes_of(entry.token)),
                [TopLogprob(names(token), value, list(names.bytes_of(token))) for token, value in entry.top[:top]],
            )
            for entry in logprobs
        ]
    )


def prompt_logprobs(tokenizer: Tokenizer, scored: list[TokenLogprobs], top: int) -> PromptLogprobs:
    """By position: the likeliest tokens, and the one that is there, by token id."""
    shown: PromptLogprobs = [None]
    for entry in scored:
        likeliest = [(token, value, rank) for rank, (token, value) in enumerate(entry.top[:top], start=1)]
        if all(token != entry.token for token, _, _ in likeliest):
            likeliest.append((entry.token, entry.logprob, entry.rank))
        shown.append(
            {
                str(token): PromptLogprob(value, rank, tokenizer.token_bytes(token).decode("utf-8", "replace"))
                for token, value, rank in likeliest
            }
        )
    return shown


class CompletionLogprobsWriter:
    """Writes one choice's log-probabilities piece by piece, keeping count of where in the text a token starts."""

    def __init__(self, names: TokenNames, top: int) -> None:
        self._names = names
        self._top = top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def prompt(self, prompt_ids: Sequence[int], logprobs: list[TokenLogprobs]) -> CompletionLogprobs:
        """An echoed prompt: its first token has no log-probability."""
        first = CompletionLogprobs([], [], [], [])
        self._add(first, prompt_ids[0], None, None)
        return join([first, self.write(logprobs)])

    def write(self, logprobs: list[TokenLogprobs]) -> CompletionLogprobs:
        written = CompletionLogprobs([], [], [], [])
        for entry in logprobs:
            self._add(written, entry.token, entry.logprob, entry.top)
        return written

    def _add(
        self, written: CompletionLogprobs, token: int, logprob: float | None, top: list[tuple[int, float]] | None
    ) -> None:
        written.text_offset.append(self._offset)
        written.tokens.append(self._names(token))
        written.token_logprobs.append(logprob)
        written.top_logprobs.append(None if top is None else self._alternatives(token, logprob, top))
        self._offset += len(self._decoder.decode(self._names.bytes_of(token)))

    def _alternatives(self, token: int, logprob: float | None, top: list[tuple[int, float]]) -> dict[str, float]:
        """The likeliest tokens, and the one taken, by text: with equal texts the likelier stays."""
        shown: dict[str, float] = {}
        for other, value in top[: self._top]:
            shown.setdefault(self._names(other), value)
        if logprob is not None:
            shown.setdefault(self._names(token), logprob)
        return shown


def join(pieces: list[CompletionLogprobs]) -> CompletionLogprobs:
    whole = CompletionLogprobs([], [], [], [])
    for piece in pieces:
        whole.text_offset += piece.text_offset
        whole.token_logprobs += piece.token_logprobs
        whole.tokens += piece.tokens
        whole.top_logprobs += piece.top_logprobs
    return whole

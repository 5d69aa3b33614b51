"""Tokenizer: text to token ids and back, over a vocabulary of any kind. Text is only text unless the caller says
that special tokens in it count (parse_special), so a user who types one gets its characters, not its meaning.

Decoding works on bytes: a token stands for bytes, and text is what their concatenation says in UTF-8. So streaming
never shows half a character, and pieces always add up to the whole.
"""

import codecs
import functools
from collections.abc import Callable
from typing import Protocol

from headrace.core.errors import RequestError
from headrace.models.added_tokens import AddedTokens

TokenBytes = Callable[[int], bytes]


class Vocabulary(Protocol):
    """kind: what it is, for reports. size: ids that have a token are below it. added: tokens that are found whole in a
    text. strip_first_space: whether a text's first space is not its own. Safe to use from several threads."""

    kind: str
    size: int
    added: AddedTokens
    strip_first_space: bool

    def encode(self, text: str, *, special: bool, ends: bool, first: bool = True) -> list[int]:
        """Token ids. special: whether special tokens in the text count; ends: whether the usual tokens are put
        around it (BOS); first: whether it begins a text, or goes on after a special token."""

    def normalize(self, text: str) -> str:
        """The text in which special tokens are looked for."""

    def id_of(self, token: str) -> int | None:
        """Id of a token by its exact name."""

    def name_of(self, token: int) -> str:
        """Name of a token; empty for an id without one."""

    def to_bytes(self, token: int) -> bytes:
        """What a token stands for; nothing for an id without one."""


class Detokenizer:
    """Text of one sequence as its tokens arrive. Ids in `skip` add nothing."""

    def __init__(self, token_bytes: TokenBytes, skip: frozenset[int]) -> None:
        self._token_bytes = token_bytes
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole = True

    def push(self, ids: list[int]) -> str:
        """Text that is certain now: never part of a character."""
        if len(ids) == 1:  # as nearly always while text is generated
            data = b"" if ids[0] in self._skip else self._token_bytes(ids[0])
        else:
            data = b"".join([self._token_bytes(i) for i in ids if i not in self._skip])
        # Most text is ASCII and needs no decoder, unless that one holds the beginning of a character.
        if self._whole and data.isascii():
            return data.decode("ascii")
        text = self._decoder.decode(data)
        self._whole = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        """What is left at the end; a character that was never completed shows as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """bos_id: the token that begins a text, or None. eos_ids: tokens that end an answer. special_ids: tokens that
    are left out of text unless asked for. vocab_size: ids that have a token are below it.

    Safe to use from several threads. Encoding releases the GIL.
    """

    def __init__(self, vocabulary: Vocabulary, *, bos_id: int | None = None, eos_ids: tuple[int, ...] = ()) -> None:
        self._vocabulary = vocabulary
        self.kind = vocabulary.kind
        self.vocab_size = vocabulary.size
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        self.special_ids = vocabulary.added.special_ids
        self.token_bytes: TokenBytes = functools.lru_cache(maxsize=None)(vocabulary.to_bytes)

    # Text to ids

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False, param: str | None = None
    ) -> list[int]:
        """Token ids of a text. add_special_tokens puts the model's usual tokens around it (BOS). Unless
        parse_special, text that looks like a special token is text. Raises RequestError, naming param, if the
        text holds a lone surrogate, which no UTF-8 can carry."""
        _check_unicode(text, param)
        special = parse_special or not self.looks_special(text)
        return self._vocabulary.encode(text, special=special, ends=add_special_tokens)

    def encode_rendered(self, text: str, stand_ins: dict[int, str], *, param: str | None = None) -> list[int]:
        """Token ids of a text in which special tokens count, and nothing is added around it. stand_ins: characters
        (by code) that are put back as others after special tokens are found, so these never become part of one."""
        _check_unicode(text, param)
        if not stand_ins:
            return self._vocabulary.encode(text, special=True, ends=False)
        ids: list[int] = []
        for part in self._vocabulary.added.split_at_special(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                part = part.translate(stand_ins)
                ids += self._vocabulary.encode(part, special=False, ends=False, first=not ids)
        return ids

    def looks_special(self, text: str) -> bool:
        """Whether special tokens would be found in this text."""
        texts = [text] if text.isascii() else [text, self._vocabulary.normalize(text)]
        return any(special in t for t in texts for special in self._vocabulary.added.special_texts)

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of the special tokens."""
        return tuple(self._vocabulary.added.special_texts)

    def id_of(self, token: str) -> int | None:
        """Id of a token by its exact name in the vocabulary."""
        return self._vocabulary.id_of(token)

    def name_of(self, token: int) -> str:
        """Name of a token in the vocabulary; empty for an id without one."""
        return self._vocabulary.name_of(token)

    # Ids to text

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids. Bytes that are not UTF-8 show as U+FFFD, ids without a token as nothing."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        text = detokenizer.push(ids) + detokenizer.flush()
        return text.removeprefix(" ") if self._vocabulary.strip_first_space else text

    def detokenizer(self, *, skip_special_tokens: bool = True, shown: tuple[str, ...] = ()) -> Detokenizer:
        """shown: special tokens, by name, that are not skipped."""
        if not skip_special_tokens:
            return Detokenizer(self.token_bytes, frozenset())
        return Detokenizer(self.token_bytes, self.special_ids - {self.id_of(name) for name in shown})

    def token_text(self, token: int) -> str:
        """Text of one token by itself, for reports: bytes that are no whole character show as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")


def _check_unicode(text: str, param: str | None) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"(U+{ord(text[error.start]):04X}) at character {error.start}"
        raise RequestError(
            f"{param or 'text'} holds a lone surrogate {where}, which is not valid Unicode", param=param
        ) from error

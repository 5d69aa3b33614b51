"""Tokenizer: text to token ids and back, over the `tokenizers` library. Text is only text unless the caller says
that special tokens in it count (parse_special), so a user who types one gets its characters, not its meaning.

Decoding works on bytes: a token stands for bytes, and text is what their concatenation says in UTF-8. So streaming
never shows half a character, and pieces always add up to the whole.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from headrace.core.errors import ModelError, RequestError

TokenBytes = Callable[[int], bytes]


class Detokenizer:
    """Text of one sequence as its tokens arrive. Ids in `skip` add nothing."""

    def __init__(self, token_bytes: TokenBytes, skip: frozenset[int]) -> None:
        self._token_bytes = token_bytes
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: list[int]) -> str:
        """Text that is certain now: never part of a character."""
        return self._decoder.decode(b"".join(self._token_bytes(i) for i in ids if i not in self._skip))

    def flush(self) -> str:
        """What is left at the end; a character that was never completed shows as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """bos_id: the token that begins a text, or None. eos_ids: tokens that end an answer. special_ids: tokens that
    are left out of text unless asked for. vocab_size: ids that have a token are below it.

    Safe to use from several threads. Encoding releases the GIL.
    """

    def __init__(self, path: Path, *, bos_id: int | None = None, eos_ids: tuple[int, ...] = ()) -> None:
        """path: a tokenizer.json. Raises ModelError if it is torn or decodes in a way that is not known."""
        self._path = path
        self._backend = _load(path)
        self.vocab_size = self._backend.get_vocab_size(with_added_tokens=True)
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._added = {i: token.content.encode() for i, token in added.items()}
        self._specials = {token.content: i for i, token in added.items() if token.special}
        self._special_order = sorted(self.special_ids, key=lambda i: len(added[i].content), reverse=True)
        self._special = _special_pattern([added[i] for i in self._special_order])
        self._decoding = _Decoding.of(self._backend, path)
        self._as_text: tokenizers.Tokenizer | None = None
        self._lock = threading.Lock()
        self.token_bytes: TokenBytes = functools.lru_cache(maxsize=None)(self._token_bytes)

    # Text to ids

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False, param: str | None = None
    ) -> list[int]:
        """Token ids of a text. add_special_tokens puts the model's usual tokens around it (BOS). Unless
        parse_special, text that looks like a special token is text. Raises RequestError, naming param, if the
        text holds a lone surrogate, which no UTF-8 can carry."""
        _check_unicode(text, param)
        backend = self._backend if parse_special or not self.looks_special(text) else self._text_backend()
        return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_rendered(self, text: str, stand_ins: dict[int, str], *, param: str | None = None) -> list[int]:
        """Token ids of a text in which special tokens count, and nothing is added around it. stand_ins: characters
        (by code) that are put back as others after special tokens are found, so these never become part of one."""
        _check_unicode(text, param)
        if not stand_ins:
            return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        ids: list[int] = []
        end = 0
        for match in self._special.finditer(text):
            assert match.lastindex is not None
            ids += self._encode_text(text[end : match.start()].translate(stand_ins))
            ids.append(self._special_order[match.lastindex - 1])
            end = match.end()
        return ids + self._encode_text(text[end:].translate(stand_ins))

    def looks_special(self, text: str) -> bool:
        """Whether special tokens would be found in this text."""
        normalizer = self._backend.normalizer
        texts = [text] if normalizer is None or text.isascii() else [text, normalizer.normalize_str(text)]
        return any(special in t for t in texts for special in self._specials)

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of the special tokens."""
        return tuple(self._specials)

    def id_of(self, token: str) -> int | None:
        """Id of a token by its exact name in the vocabulary."""
        return self._backend.token_to_id(token)

    def name_of(self, token: int) -> str:
        """Name of a token in the vocabulary; empty for an id without one."""
        return self._backend.id_to_token(token) or ""

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        return self._text_backend().encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _text_backend(self) -> tokenizers.Tokenizer:
        """A second copy, to which special tokens are text; made when the first such text comes."""
        with self._lock:
            if self._as_text is None:
                backend = _load(self._path)
                backend.encode_special_tokens = True
                self._as_text = backend
            return self._as_text

    # Ids to text

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids. Bytes that are not UTF-8 show as U+FFFD, ids without a token as nothing."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        text = detokenizer.push(ids) + detokenizer.flush()
        return text.removeprefix(" ") if self._decoding.strip_first_space else text

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        return Detokenizer(self.token_bytes, self.special_ids if skip_special_tokens else frozenset())

    def token_text(self, token: int) -> str:
        """Text of one token by itself, for reports: bytes that are no whole character show as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def _token_bytes(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return added
        name = self._backend.id_to_token(token) if 0 <= token < 2**32 else None
        return b"" if name is None else self._decoding.to_bytes(name)


class _Decoding:
    """How a token's name in the vocabulary stands for bytes. byte_level: every character is one byte; otherwise
    `▁` is a space and <0xAB> is one byte."""

    def __init__(self, byte_level: bool, strip_first_space: bool) -> None:
        self.to_bytes = _byte_level_bytes if byte_level else _piece_bytes
        self.strip_first_space = strip_first_space

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, path: Path) -> _Decoding:
        decoder: dict[str, Any] = {} if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        steps = decoder.get("decoders", [decoder])
        kinds = {step.get("type") for step in steps}
        if kinds == {"ByteLevel"}:
            return cls(byte_level=True, strip_first_space=False)
        if kinds == {"Metaspace"}:
            return cls(byte_level=False, strip_first_space=steps[0].get("prepend_scheme") != "never")
        if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
            return cls(byte_level=False, strip_first_space="Strip" in kinds)
        raise ModelError(f"{path}: a tokenizer that decodes by {sorted(map(str, kinds))} is not supported")


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ModelError(f"{path}: not a valid tokenizer: {error}") from error


def _check_unicode(text: str, param: str | None) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"(U+{ord(text[error.start]):04X}) at character {error.start}"
        raise RequestError(
            f"{param or 'text'} holds a lone surrogate {where}, which is not valid Unicode", param=param
        ) from error


def _special_pattern(tokens: list[tokenizers.AddedToken]) -> re.Pattern[str]:
    """Matches any of these, the first that fits, with the white space it takes along; lastindex says which."""
    alternatives = []
    for token in tokens:
        before = r"(?:(?<!\s)\s++)?" if token.lstrip else ""
        alternatives.append(before + f"({re.escape(token.content)})" + (r"\s*" if token.rstrip else ""))
    return re.compile("|".join(alternatives) or r"(?!)")


def _byte_level_bytes(name: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, name))
    except KeyError:
        return name.encode()


def _piece_bytes(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("▁", " ").encode()


def _byte_characters() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies: itself where printable in Latin-1,
    otherwise one from U+0100 on (GPT-2's bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_characters()

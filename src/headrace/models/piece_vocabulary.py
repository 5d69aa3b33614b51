"""PieceVocabulary: a SentencePiece tokenizer with the tokens its model adds to it, and those put around a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import ModelError
from headrace.models.added_tokens import AddedToken, AddedTokens
from headrace.models.piece_encoder import PieceEncoder
from headrace.models.pieces import Algorithm, Kind, Pieces
from headrace.models.sentencepiece_model import read_sentencepiece


def load_sentencepiece(path: Path, settings: Mapping[str, Any]) -> PieceVocabulary:
    """A tokenizer.model. settings: what tokenizer_config.json says beside it. Raises ModelError."""
    model = read_sentencepiece(path)
    usual = model.pieces.algorithm is Algorithm.BPE
    ends = (("add_bos_token", usual, model.bos_id), ("add_eos_token", False, model.eos_id))
    begin, end = ([index] if settings.get(name, given) and index >= 0 else [] for name, given, index in ends)
    added = _added_tokens(settings.get("added_tokens_decoder") or {}, path)
    every = settings.get("legacy") is not False
    return PieceVocabulary(model.pieces, added=added, begin=begin, end=end, prefix_every=every)


def _added_tokens(given: Any, path: Path) -> list[AddedToken]:
    """`added_tokens_decoder` of tokenizer_config.json: settings of a token by its id."""
    added = []
    for key, token in given.items() if isinstance(given, Mapping) else ():
        content = token.get("content") if isinstance(token, Mapping) else None
        if not key.isdecimal() or int(key) >= 1 << 31 or not isinstance(content, str) or not content:
            raise ModelError(f"{path}: added_tokens_decoder: {key!r} is no token: {token!r:.100}")
        if token.get("single_word"):
            raise ModelError(f"{path}: added token {content!r} with single_word is not supported")
        special, left, right = (bool(token.get(name)) for name in ("special", "lstrip", "rstrip"))
        added.append(AddedToken(int(key), content, special, left, right))
    return added


_NAMES = {Algorithm.UNIGRAM: "Unigram", Algorithm.BPE: "BPE"}


class PieceVocabulary:
    """A Vocabulary. added: tokens beyond control and unknown pieces, or in place of them. begin, end: put around a
    text. prefix_every: whether text after a special token gets the dummy prefix too, not only a text's beginning."""

    def __init__(
        self,
        pieces: Pieces,
        *,
        added: Iterable[AddedToken] = (),
        begin: Sequence[int] = (),
        end: Sequence[int] = (),
        prefix_every: bool = True,
    ) -> None:
        self._pieces = pieces
        self._encoder = PieceEncoder(pieces)
        self.kind = (
            f"{pieces.algorithm.name.capitalize() if pieces.algorithm is Algorithm.UNIGRAM else 'BPE'} (SentencePiece)"
        )
        control = [i for i in (*pieces.ids_of(Kind.CONTROL), *pieces.ids_of(Kind.UNKNOWN)) if pieces.names[i]]
        tokens = {i: AddedToken(i, pieces.names[i], special=True) for i in control}
        tokens |= {token.id: token for token in added}
        self.added = AddedTokens(tokens.values())
        self.size = max(len(pieces.names), *(index + 1 for index in tokens)) if tokens else len(pieces.names)
        self.strip_first_space = pieces.dummy_prefix
        self._begin, self._end = list(begin), list(end)
        self._prefix_every = prefix_every
        self._ids = {name: index for index, name in enumerate(pieces.names)}
        self._ids |= {token.content: token.id for token in tokens.values()}

    def encode(self, text: str, *, special: bool, ends: bool, first: bool = True) -> list[int]:
        ids: list[int] = []
        for part in self.added.split(text, special=special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encoder.encode(part, first=self._prefix_every or (first and not ids))
        return [*self._begin, *ids, *self._end] if ends else ids

    def normalize(self, text: str) -> str:
        return text

    def id_of(self, token: str) -> int | None:
        return self._ids.get(token)

    def name_of(self, token: int) -> str:
        added = self.added.by_id.get(token)
        if added is not None:
            return added.content
        return self._pieces.names[token] if 0 <= token < len(self._pieces.names) else ""

    def to_bytes(self, token: int) -> bytes:
        added = self.added.by_id.get(token)
        if added is not None:
            return added.content.encode()
        return self._pieces.to_bytes(token) if 0 <= token < len(self._pieces.names) else b""

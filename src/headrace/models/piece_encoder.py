"""PieceEncoder: text to the ids that SentencePiece would give. Text is normalized here; the search for pieces is done
by the `tokenizers` library, in a vocabulary arranged so that it follows SentencePiece's rules: no text can become a
control, byte or unknown piece by spelling its name.
"""

import hashlib
import re
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models

from headrace.core.errors import ModelError
from headrace.models.added_tokens import AddedToken, AddedTokens
from headrace.models.cache import cache_folder, locked, write_whole
from headrace.models.charsmap import Charsmap
from headrace.models.pieces import SPACE, Algorithm, Kind, Pieces

_VERSION = "1"
_USER_DEFINED_BONUS = -0.1


class PieceEncoder:
    """Safe to use from several threads."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._backend = _cached_backend(pieces)
        self._charsmap = Charsmap(pieces.charsmap, pieces.path)
        names = {index: pieces.names[index] for index in pieces.ids_of(Kind.USER_DEFINED)}
        self._user_defined = AddedTokens(AddedToken(i, _spaced(name), special=False) for i, name in names.items())
        self._kept = AddedTokens(AddedToken(i, name, special=False) for i, name in names.items())
        self._byte_ids = pieces.byte_ids() if pieces.byte_fallback else {}

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Ids of a text, nothing added around it. first: whether it may get the dummy prefix, if the model has it."""
        text = self._normalized(text, first)
        if not text:
            return []
        if self._pieces.algorithm is Algorithm.UNIGRAM:
            return self._most_probable(text)
        parts = list(self._user_defined.split(text, special=False))
        texts = [part for part in parts if isinstance(part, str)]
        chunks = iter(self._backend.encode_batch_fast(texts, add_special_tokens=False))
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += next(chunks).ids
        return ids

    def _most_probable(self, text: str) -> list[int]:
        """The library knows no byte fallback that keeps byte pieces out of text, so it is done here."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        if not self._byte_ids:
            return encoding.ids
        ids: list[int] = []
        for index, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if index == self._pieces.unknown_id:
                ids += [self._byte_ids[byte] for byte in text[begin:end].encode()]
            else:
                ids.append(index)
        return ids

    def _normalized(self, text: str, first: bool) -> str:
        if self._pieces.charsmap:
            parts = self._kept.split(text, special=False)
            text = "".join(self._pieces.names[p] if isinstance(p, int) else self._charsmap(p) for p in parts)
        if self._pieces.collapse_spaces:
            text = re.sub(" {2,}", " ", text.strip(" "))
        if text and first and self._pieces.dummy_prefix:
            text = " " + text
        return _spaced(text)


def _spaced(text: str) -> str:
    return text.replace(" ", SPACE)


def _cached_backend(pieces: Pieces) -> tokenizers.Tokenizer:
    """Built once for a vocabulary and kept in the cache folder, from where it loads several times faster."""
    path = cache_folder() / "tokenizers" / f"{_digest(pieces)}.json"
    if not path.exists():
        with locked(path):
            if not path.exists():
                write_whole(path, tokenizers.Tokenizer(_model(pieces)).to_str().encode())
    return _load(path)


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ModelError(f"{path}: a cached vocabulary is torn ({error}); delete it") from error


def _digest(pieces: Pieces) -> str:
    settings = f"{_VERSION} {pieces.algorithm} {pieces.unknown_id} {pieces.byte_fallback}"
    digest = hashlib.blake2b(settings.encode(), digest_size=16)
    digest.update("\0".join(pieces.names).encode())
    digest.update(np.array(pieces.scores, np.float64).tobytes() + np.array(pieces.kinds, np.int32).tobytes())
    return digest.hexdigest()


def _model(pieces: Pieces) -> models.Model:
    # Names with a plain space: no text has one by the time pieces are looked for.
    names = [f" {index}" for index in range(len(pieces.names))]
    for index in pieces.ids_of(Kind.NORMAL):
        names[index] = pieces.names[index]
    return _unigram(pieces, names) if pieces.algorithm is Algorithm.UNIGRAM else _bpe(pieces, names)


def _bpe(pieces: Pieces, names: list[str]) -> models.BPE:
    """Every way to join two pieces into a third is a merge, in the order of the third's score."""
    normal = {pieces.names[index]: index for index in pieces.ids_of(Kind.NORMAL)}
    places = np.array(list(normal.values()), np.int64)
    by_score = places[np.argsort(-np.array(pieces.scores)[places], kind="stable")]
    merges = []
    for index in by_score.tolist():
        name = pieces.names[index]
        for cut in range(1, len(name)):
            left, right = name[:cut], name[cut:]
            if left in normal and right in normal:
                merges.append((left, right))
    if pieces.byte_fallback:
        for byte, index in pieces.byte_ids().items():
            names[index] = f"<0x{byte:02X}>"
    vocabulary = {name: index for index, name in enumerate(names)}
    return models.BPE(
        vocabulary, merges, unk_token=names[pieces.unknown_id], fuse_unk=True, byte_fallback=pieces.byte_fallback
    )


def _unigram(pieces: Pieces, names: list[str]) -> models.Unigram:
    """User-defined pieces get SentencePiece's own bonus, which is what makes them win."""
    normal = [pieces.scores[index] for index in pieces.ids_of(Kind.NORMAL)]
    least, most = min(normal, default=0.0), max(normal, default=0.0)
    scores = [least] * len(names)
    for index, kind in enumerate(pieces.kinds):
        if kind == Kind.NORMAL:
            scores[index] = pieces.scores[index]
        elif kind == Kind.USER_DEFINED:
            names[index] = _spaced(pieces.names[index])
            scores[index] = len(names[index].encode()) * most + _USER_DEFINED_BONUS
    return models.Unigram(list(zip(names, scores, strict=True)), pieces.unknown_id, False)

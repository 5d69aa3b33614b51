"""Reader of SentencePiece's tokenizer.model: a protocol buffer, read here by hand, since it takes one screen. Field
numbers are from sentencepiece_model.proto (https://github.com/google/sentencepiece). A setting that would change
tokens and is not supported is refused by name.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelError
from headrace.models.pieces import Algorithm, Kind, Pieces

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_BYTES = 256 * 2**20

_MODEL_PIECE, _MODEL_TRAINER, _MODEL_NORMALIZER, _MODEL_DENORMALIZER = 1, 2, 3, 5
_PIECE_NAME, _PIECE_SCORE, _PIECE_KIND = 1, 2, 3
_TRAINER_TYPE, _TRAINER_SUFFIX, _TRAINER_BYTES = 3, 24, 35
_TRAINER_UNKNOWN, _TRAINER_BOS, _TRAINER_EOS = 40, 41, 42
_NORMALIZER_CHARSMAP, _NORMALIZER_PREFIX, _NORMALIZER_SPACES, _NORMALIZER_ESCAPE = 2, 3, 4, 5
_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """bos_id and eos_id: -1 for none."""

    pieces: Pieces
    bos_id: int
    eos_id: int


class _Torn(Exception):
    """The bytes are no protocol buffer."""


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Raises ModelError naming the file and what is wrong with it, or not supported."""
    if path.stat().st_size > _MAX_BYTES:
        raise ModelError(f"{path}: larger than {_MAX_BYTES} bytes, which no tokenizer.model is")
    try:
        return _read(path, memoryview(path.read_bytes()))
    except (_Torn, struct.error, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not a SentencePiece model: {error}") from error


def _read(path: Path, data: memoryview) -> SentencePieceModel:
    names, scores, kinds = [], [], []
    sections: dict[int, dict[int, int | memoryview]] = {}
    for field, value in _fields(data):
        if field == _MODEL_PIECE:
            name, score, kind = _piece(_message(value))
            names.append(name)
            scores.append(score)
            kinds.append(kind)
        elif field in (_MODEL_TRAINER, _MODEL_NORMALIZER, _MODEL_DENORMALIZER):
            sections[field] = dict(_fields(_message(value)))
    trainer, normalizer = sections.get(_MODEL_TRAINER, {}), sections.get(_MODEL_NORMALIZER, {})
    algorithm = _number(trainer.get(_TRAINER_TYPE, Algorithm.UNIGRAM.value))
    if algorithm not in (Algorithm.UNIGRAM.value, Algorithm.BPE.value):
        named = _TYPES.get(algorithm, algorithm)
        raise ModelError(f"{path}: models of type {named} are not supported; unigram and bpe are")
    if trainer.get(_TRAINER_SUFFIX, 0):
        raise ModelError(f"{path}: treat_whitespace_as_suffix is not supported")
    if not normalizer.get(_NORMALIZER_ESCAPE, 1):
        raise ModelError(f"{path}: escape_whitespaces = false is not supported")
    if sections.get(_MODEL_DENORMALIZER, {}).get(_NORMALIZER_CHARSMAP):
        raise ModelError(f"{path}: a denormalizer is not supported")
    if Kind.UNUSED in kinds:
        raise ModelError(f"{path}: unused pieces are not supported, the first is {names[kinds.index(Kind.UNUSED)]!r}")
    pieces = Pieces(
        path=path,
        algorithm=Algorithm(algorithm),
        names=names,
        scores=scores,
        kinds=kinds,
        unknown_id=_number(trainer.get(_TRAINER_UNKNOWN, 0)),
        byte_fallback=bool(trainer.get(_TRAINER_BYTES, 0)),
        dummy_prefix=bool(normalizer.get(_NORMALIZER_PREFIX, 1)),
        collapse_spaces=bool(normalizer.get(_NORMALIZER_SPACES, 1)),
        charsmap=bytes(_message(normalizer.get(_NORMALIZER_CHARSMAP, memoryview(b"")))),
    )
    ends = [_number(trainer.get(field, default)) for field, default in ((_TRAINER_BOS, 1), (_TRAINER_EOS, 2))]
    bos_id, eos_id = (index if 0 <= index < len(names) else -1 for index in ends)
    return SentencePieceModel(pieces, bos_id, eos_id)


def _piece(data: memoryview) -> tuple[str, float, int]:
    name, score, kind = "", 0.0, int(Kind.NORMAL)
    for field, value in _fields(data):
        if field == _PIECE_NAME:
            name = bytes(_message(value)).decode()
        elif field == _PIECE_SCORE:
            score = struct.unpack("<f", _message(value))[0]
        elif field == _PIECE_KIND:
            kind = _number(value)
    return name, score, kind


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of a message's fields: whole numbers as they are, everything else as its bytes."""
    position, size = 0, len(data)
    while position < size:
        key, position = _varint(data, position)
        wire = key & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise _Torn(f"unknown wire type {wire}")
        if length > size - position:
            raise _Torn("it ends inside a field")
        yield key >> 3, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise _Torn("it ends inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _Torn("a number has more than 64 bits")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _Torn("a number stands where bytes should")
    return value


def _number(value: int | memoryview) -> int:
    """A signed 32-bit number: negative ones are written as 64 bits."""
    if not isinstance(value, int):
        raise _Torn("bytes stand where a number should")
    return value - (1 << 64) if value >= 1 << 63 else value

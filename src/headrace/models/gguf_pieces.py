"""The SentencePiece vocabulary inside a GGUF file: `tokenizer.ggml.model` llama (BPE by scores) or t5 (unigram)."""

import math
from typing import NamedTuple

from headrace.core.errors import ModelError
from headrace.models.formats.gguf_metadata import GGUFMetadata
from headrace.models.piece_vocabulary import PieceVocabulary
from headrace.models.pieces import Algorithm, Kind, Pieces


class _Usual(NamedTuple):
    """What holds where the file does not say."""

    algorithm: Algorithm
    collapse_spaces: bool
    unknown_id: int


_USUAL = {"llama": _Usual(Algorithm.BPE, False, 0), "t5": _Usual(Algorithm.UNIGRAM, True, 2)}


def load_pieces(file: GGUFMetadata, *, begin: list[int], end: list[int]) -> PieceVocabulary:
    """begin, end: tokens put around every text that asks for special tokens. Raises ModelError as read_pieces."""
    return PieceVocabulary(read_pieces(file), begin=begin, end=end)


def read_pieces(file: GGUFMetadata) -> Pieces:
    """Raises ModelError naming the setting that is missing, torn or not supported."""
    usual = _USUAL[str(file.get("tokenizer.ggml.model"))]
    if file.get("tokenizer.ggml.treat_whitespace_as_suffix"):
        raise ModelError(f"{file.path}: tokenizer.ggml.treat_whitespace_as_suffix is not supported")
    names = file.strings("tokenizer.ggml.tokens")
    kinds = [int(kind) for kind in _numbers(file, "token_type", len(names))]
    scores = [float(score) for score in _numbers(file, "scores", len(names))]
    if not all(map(math.isfinite, scores)):
        raise ModelError(f"{file.path}: tokenizer.ggml.scores has one that is no number")
    charsmap = b""
    if "tokenizer.ggml.precompiled_charsmap" in file:
        charsmap = bytes(int(byte) & 255 for byte in file.numbers("tokenizer.ggml.precompiled_charsmap"))
    unknown = file.get("tokenizer.ggml.unknown_token_id")
    return Pieces(
        path=file.path,
        algorithm=usual.algorithm,
        names=names,
        scores=scores,
        kinds=kinds,
        unknown_id=usual.unknown_id if type(unknown) is not int else unknown,
        byte_fallback=Kind.BYTE in kinds,
        dummy_prefix=_switch(file, "add_space_prefix", True),
        collapse_spaces=_switch(file, "remove_extra_whitespaces", usual.collapse_spaces),
        charsmap=charsmap,
    )


def _numbers(file: GGUFMetadata, name: str, count: int) -> list[int | float | bool]:
    key = f"tokenizer.ggml.{name}"
    if key not in file:
        raise ModelError(f"{file.path}: {key} is missing")
    numbers = file.numbers(key)
    if len(numbers) != count:
        raise ModelError(f"{file.path}: {key} has {len(numbers)} entries, tokens {count}")
    return numbers


def _switch(file: GGUFMetadata, name: str, usual: bool) -> bool:
    value = file.get(f"tokenizer.ggml.{name}")
    if value is None:
        return usual
    if not isinstance(value, bool):
        raise ModelError(f"{file.path}: tokenizer.ggml.{name} must be true or false, got {value!r}")
    return value

"""The SentencePiece vocabulary inside a GGUF file: `tokenizer.ggml.model` llama (BPE by scores) or t5 (unigram)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headrace.core.errors import ModelError
from headrace.models.formats.gguf import GGUFFile
from headrace.models.pieces import Algorithm, Kind, Pieces


class _Usual(NamedTuple):
    """What holds where the file does not say."""

    algorithm: Algorithm
    collapse_spaces: bool
    unknown_id: int


_USUAL = {"llama": _Usual(Algorithm.BPE, False, 0), "t5": _Usual(Algorithm.UNIGRAM, True, 2)}
MODELS = frozenset(_USUAL)


def read_pieces(file: GGUFFile) -> Pieces:
    """Raises ModelError naming the setting that is missing, torn or not supported."""
    usual = _USUAL[str(file.get("tokenizer.ggml.model"))]
    if file.get("tokenizer.ggml.treat_whitespace_as_suffix"):
        raise ModelError(f"{file.path}: tokenizer.ggml.treat_whitespace_as_suffix is not supported")
    names = file.strings("tokenizer.ggml.tokens")
    kinds = _numbers(file, "token_type", len(names)).astype(np.int64).tolist()
    scores = _numbers(file, "scores", len(names)).astype(np.float64).tolist()
    if not all(map(math.isfinite, scores)):
        raise ModelError(f"{file.path}: tokenizer.ggml.scores has one that is no number")
    charsmap = b""
    if "tokenizer.ggml.precompiled_charsmap" in file:
        charsmap = file.numbers("tokenizer.ggml.precompiled_charsmap").astype(np.uint8).tobytes()
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


def _numbers(file: GGUFFile, name: str, count: int) -> np.ndarray:
    key = f"tokenizer.ggml.{name}"
    if key not in file:
        raise ModelError(f"{file.path}: {key} is missing")
    numbers = file.numbers(key)
    if len(numbers) != count:
        raise ModelError(f"{file.path}: {key} has {len(numbers)} entries, tokens {count}")
    return numbers


def _switch(file: GGUFFile, name: str, usual: bool) -> bool:
    value = file.get(f"tokenizer.ggml.{name}")
    if value is None:
        return usual
    if not isinstance(value, bool):
        raise ModelError(f"{file.path}: tokenizer.ggml.{name} must be true or false, got {value!r}")
    return value

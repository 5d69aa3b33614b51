"""Pieces: the vocabulary and the settings of a SentencePiece tokenizer, wherever they were read from: a
tokenizer.model (sentencepiece_model.py) or a GGUF file (gguf_pieces.py).
"""

import enum
import re
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelError

SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Algorithm(enum.Enum):
    """How pieces are chosen: unigram: the most probable cut (Kudo, arXiv:1804.10959); bpe: join the neighbours that
    make the piece of the highest score, again and again."""

    UNIGRAM = 1
    BPE = 2


class Kind(enum.IntEnum):
    """A piece's type, numbered as in SentencePiece's model files and in GGUF's token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Pieces:
    """names, scores and kinds by id. dummy_prefix: a text begins with a space that is not its own; collapse_spaces:
    runs of spaces become one, and those at the ends nothing. charsmap: the compiled normalization, empty for none."""

    path: Path
    algorithm: Algorithm
    names: list[str]
    scores: list[float]
    kinds: list[int]
    unknown_id: int
    byte_fallback: bool
    dummy_prefix: bool
    collapse_spaces: bool
    charsmap: bytes

    def __post_init__(self) -> None:
        if not self.names or not len(self.names) == len(self.scores) == len(self.kinds):
            counts = f"{len(self.names)} pieces, {len(self.scores)} scores and {len(self.kinds)} types"
            raise ModelError(f"{self.path}: the vocabulary has {counts}")
        if not 0 <= self.unknown_id < len(self.names):
            raise ModelError(f"{self.path}: the unknown token must be below {len(self.names)}, got {self.unknown_id}")
        text = [name for name, kind in zip(self.names, self.kinds, strict=True) if kind in _OF_TEXT]
        if len(set(text)) != len(text) or "" in text:
            raise ModelError(f"{self.path}: the vocabulary has a piece twice, or an empty one")
        if self.byte_fallback and len(self.byte_ids()) != 256:
            raise ModelError(f"{self.path}: byte fallback needs 256 byte pieces, found {len(self.byte_ids())}")

    def ids_of(self, kind: Kind) -> list[int]:
        number = int(kind)  # compared many times faster than the member of an enum
        return [index for index, found in enumerate(self.kinds) if found == number]

    def byte_ids(self) -> dict[int, int]:
        """Id of the piece that stands for each byte."""
        found = {}
        for index in self.ids_of(Kind.BYTE):
            match = _BYTE.fullmatch(self.names[index])
            if match is None:
                raise ModelError(f"{self.path}: byte piece {index} is named {self.names[index]!r}, expected <0xAB>")
            found[int(match[1], 16)] = index
        return found

    def to_bytes(self, index: int) -> bytes:
        """What a piece stands for."""
        name, kind = self.names[index], self.kinds[index]
        if kind == Kind.BYTE:
            return bytes([int(name[3:5], 16)])
        return name.encode() if kind in (Kind.CONTROL, Kind.UNKNOWN) else name.replace(SPACE, " ").encode()


_OF_TEXT = (Kind.NORMAL, Kind.USER_DEFINED)

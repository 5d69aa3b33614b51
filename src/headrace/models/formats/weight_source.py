"""WeightSource: what a weight file is to the rest of the models room, whichever its format. Shapes are [n, k] for
matrices (outputs first), and every weight can be had as a Matrix or a float32 vector without reading the others.

Readers map the file and never copy it whole. Headers are data from strangers: every count, length and offset is
checked against the file's size before anything is allocated for it.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError
from headrace.ops.matrix import Matrix, Scheme

FloatVector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Form:
    """What a weight becomes, told from headers alone: `stored` is its type in the file; scheme, group and stored_as are
    those of its Matrix."""

    stored: str
    scheme: Scheme
    group: int = 0
    stored_as: str = ""


class WeightSource(Protocol):
    """Weights of one model by their names in the file(s). All methods raise ModelError naming file and tensor."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def matrix(self, name: str) -> Matrix:
        """The weight as stored, or in the nearest scheme where none holds it (Matrix.stored_as then names its type);
        a tensor of two dimensions, or of three, whose matrices' rows follow one another. float16 widens to f32."""

    def floats(self, name: str) -> Matrix:
        """The same as f32, exactly the stored values."""

    def form(self, name: str) -> Form:
        """What matrix() makes of the weight."""

    def vector(self, name: str) -> FloatVector:
        """The weight as float32; a one-dimensional float tensor."""

    def digest(self, name: str) -> bytes:
        """16 bytes that change when the weight's type, shape or any stored value changes."""

    def stored_bytes(self) -> dict[str, int]:
        """Bytes of all tensors by the type they are stored in."""

    def release(self, name: str) -> None:
        """The weight's pages of the file may leave memory; they are read again when needed."""

    def describe(self, name: str) -> str:
        """`tensor` and file, for messages."""


def check_no_overlap(spans: list[tuple[int, int, str]], path: Path) -> None:
    """spans: (begin, end, name) in bytes. Raises ModelError when two tensors share bytes."""
    spans.sort()
    for (_, end, before), (begin, _, name) in itertools.pairwise(spans):
        if begin < end:
            raise ModelError(f"{path}: tensors {before!r} and {name!r} overlap")

"""Reader of GGUF files (versions 2 and 3, little-endian), whole or split, by memory map. Opening walks the headers
only: weights are read when asked for. What a file claims and cannot hold is refused with ModelError.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError
from headrace.models.formats import gguf_matrix
from headrace.models.formats.gguf_header import Header
from headrace.models.formats.gguf_metadata import GGUFMetadata
from headrace.models.formats.gguf_types import BlockType
from headrace.models.formats.mapped_file import release_pages
from headrace.models.formats.weight_source import FloatVector, Form, check_no_overlap
from headrace.ops.content_digest import content_digest
from headrace.ops.matrix import Matrix

_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
_MAX_PARTS = 1024


@dataclass(frozen=True, slots=True)
class _Tensor:
    """shape is outputs first (the reverse of the file's order); begin and end are bytes in `file`."""

    file: GGUFFile
    type: BlockType
    shape: tuple[int, ...]
    begin: int
    end: int

    def raw(self) -> npt.NDArray[np.uint8]:
        return self.file.bytes[self.begin : self.end]


class GGUFFile(GGUFMetadata):
    """A GGUF file with a WeightSource of its tensors. Of a split model the first part is opened,
    which has the metadata, and has the tensors of all. alone: one part by itself."""

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        super().__init__(path)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._tensors: dict[str, _Tensor] = {}
        self._place(self._header)
        if not alone:
            self._add_parts()

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def describe(self, name: str) -> str:
        tensor = self._tensors.get(name)
        return f"{name} in {self.path if tensor is None else tensor.file.path}"

    def matrix(self, name: str) -> Matrix:
        return gguf_matrix.to_matrix(*self._rows(name))

    def floats(self, name: str) -> Matrix:
        _, _, n, k = rows = self._rows(name)
        return Matrix("f32", n, k, gguf_matrix.to_floats(*rows))

    def form(self, name: str) -> Form:
        return gguf_matrix.form(self._tensor(name).type)

    def vector(self, name: str) -> FloatVector:
        tensor = self._tensor(name)
        if len(tensor.shape) != 1:
            raise ModelError(f"{self.describe(name)} has shape {tensor.shape}, expected a vector")
        return gguf_matrix.to_floats(tensor.type, tensor.raw(), 1, tensor.shape[0]).reshape(-1)

    def _rows(self, name: str) -> tuple[BlockType, npt.NDArray[np.uint8], int, int]:
        """Type, bytes, rows and columns of a matrix, or of several one after the other."""
        tensor = self._tensor(name)
        if len(tensor.shape) not in (2, 3):
            raise ModelError(f"{self.describe(name)} has shape {tensor.shape}, expected a matrix")
        *rows, k = tensor.shape
        return tensor.type, tensor.raw(), math.prod(rows), k

    def digest(self, name: str) -> bytes:
        tensor = self._tensor(name)
        return content_digest(f"{tensor.type.name} {tensor.shape}", tensor.raw())

    def stored_bytes(self) -> dict[str, int]:
        sizes: Counter[str] = Counter()
        for tensor in self._tensors.values():
            sizes[tensor.type.name] += tensor.end - tensor.begin
        return dict(sizes)

    def release(self, name: str) -> None:
        tensor = self._tensor(name)
        release_pages(tensor.file._map, tensor.begin, tensor.end)

    def _tensor(self, name: str) -> _Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise ModelError(f"{self.path}: tensor {name} is missing") from None

    # Parts

    def _add_parts(self) -> None:
        """The other parts of a split model lie beside this one and are named after their place."""
        place, count = self._split("no"), self._split("count")
        if count <= 1:
            return
        name = _PART.fullmatch(self.path.name)
        if name is None or int(name["count"]) != count:
            raise ModelError(f"{self.path}: one of {count} parts must be named NAME-00001-of-{count:05}.gguf")
        paths = [self.path.with_name(f"{name['stem']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
        if place != 0 or paths[0] != self.path:
            raise ModelError(f"{self.path}: it is a part of a split model; give its first, {paths[0].name}")
        for number, path in enumerate(paths[1:], 1):
            part = GGUFFile(path, alone=True)
            if (part._split("no"), part._split("count")) != (number, count):
                raise ModelError(f"{path}: it is not part {number + 1} of the {count} that begin with {self.path.name}")
            for tensor in part._tensors.keys() & self._tensors.keys():
                raise ModelError(f"{path}: tensor {tensor!r} is also in {self._tensors[tensor].file.path}")
            self._tensors |= part._tensors

    def _split(self, name: str) -> int:
        value = self.get(f"split.{name}")
        if value is None:
            return 0
        if type(value) is not int or not 0 <= value <= _MAX_PARTS:
            raise ModelError(f"{self.path}: split.{name} must be from 0 to {_MAX_PARTS}, got {value!r}")
        return value

    def _place(self, header: Header) -> None:
        spans = []
        for info in header.tensors:
            begin = header.data + info.offset
            end = begin + info.size
            if info.name in self._tensors:
                raise header.fail(f"tensor {info.name!r} appears twice")
            if info.offset % header.alignment:
                raise header.fail(f"tensor {info.name!r} starts at {info.offset}, not a multiple of {header.alignment}")
            if end > len(self._map):
                raise header.fail(f"tensor {info.name!r} of shape {info.shape} exceeds the file")
            self._tensors[info.name] = _Tensor(self, info.type, info.shape, begin, end)
            spans.append((begin, end, info.name))
        check_no_overlap(spans, self.path)

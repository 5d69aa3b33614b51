"""The header of a GGUF file: entries by key, and what tensors there are, of a file that may be there only in part.
Arrays are stepped over, not decoded.

What a header claims is checked against the file's size before anything is allocated for it. Layout:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelError
from headrace.models.formats import gguf_types

U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
STRING = 8
_ARRAY = 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}

_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 16
_MIN_ENTRY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

Scalar = int | float | bool | str


class CutShort(ModelError):
    """The header goes on beyond the bytes that are there."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array of the header: elements of `kind`, from `begin` to `end` in the file."""

    kind: int
    count: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """shape is outputs first (the reverse of the file's order); offset is from where data begin."""

    name: str
    type: gguf_types.BlockType
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) // self.type.values * self.type.bytes


class Header:
    """entries, tensors, their alignment, and where their data begin. Raises ModelError for what is no valid header,
    CutShort if it may be one but `view` ends before it does."""

    def __init__(self, path: Path, view: mmap.mmap | bytes, size: int) -> None:
        """view: the file, or its beginning. size: of the whole file."""
        self.path, self._view, self._size = path, view, size
        self._here = len(view)
        self.entries: dict[str, Scalar | Array] = {}
        self.position = 0
        if self._view[:4] != b"GGUF":
            raise self.fail("it does not start with GGUF")
        self.position = 4
        version = self._take(_U32)
        if version not in (2, 3):
            raise self.fail(f"version {version} is not supported (2 and 3, little-endian, are)")
        tensors, entries = self._take(U64), self._take(U64)
        if entries * _MIN_ENTRY_BYTES + tensors * _MIN_TENSOR_BYTES > self._size:
            raise self.fail(f"{tensors} tensors and {entries} entries exceed the file")
        for _ in range(entries):
            key = self._take_string()
            if key in self.entries:
                raise self.fail(f"key {key!r} appears twice")
            self.entries[key] = self._take_value(key, self._take(_U32))
        alignment = self.entries.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.fail(f"general.alignment must be a power of two from 8 to {_MAX_ALIGNMENT}, got {alignment!r}")
        self.alignment = alignment
        self.tensors = [self._take_tensor() for _ in range(tensors)]
        self.data = -(-self.position // alignment) * alignment

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: not a valid GGUF file: {what} (at byte {self.position})")

    def _reach(self, end: int, what: str) -> None:
        """Raise unless the bytes up to `end` are here."""
        if end > self._size:
            raise self.fail(what)
        if end > self._here:
            raise CutShort(f"{self.path}: its header goes on beyond byte {self._here}")

    def _take(self, layout: struct.Struct) -> int:
        begin, end = self.position, self.position + layout.size
        self._reach(end, "it ends inside its header")
        self.position = end
        value: int = layout.unpack_from(self._view, begin)[0]
        return value

    def _take_string(self) -> str:
        length = self._take(U64)
        begin, end = self.position, self.position + length
        self._reach(end, f"a string of {length} bytes exceeds the file")
        self.position = end
        try:
            return self._view[begin:end].decode()
        except UnicodeDecodeError:
            raise self.fail("a string is not UTF-8") from None

    def _take_value(self, key: str, kind: int) -> Scalar | Array:
        if kind == STRING:
            return self._take_string()
        if kind in _SCALARS:
            return self._take(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.fail(f"{key} has unknown type {kind}")
        element, count = self._take(_U32), self._take(U64)
        begin = self.position
        if element in _SCALARS:
            end = begin + count * _SCALARS[element].size
        elif element == STRING:
            end = self._skip_strings(key, count)
        else:
            raise self.fail(f"{key} is an array of type {element}; numbers and strings are supported")
        self._reach(end, f"{key}: an array of {count} elements exceeds the file")
        self.position = end
        return Array(element, count, begin, end)

    def _skip_strings(self, key: str, count: int) -> int:
        position, last, unpack, view = self.position, self._here - 8, U64.unpack_from, self._view
        if count * 8 > self._size - position:
            raise self.fail(f"{key}: an array of {count} strings exceeds the file")
        for _ in range(count):
            if position > last:
                self._reach(position + 8, f"{key}: a string exceeds the file")
            position += 8 + unpack(view, position)[0]
        return position

    def _take_tensor(self) -> TensorInfo:
        name = self._take_string()
        rank = self._take(_U32)
        if not 1 <= rank <= _MAX_DIMS:
            raise self.fail(f"tensor {name!r} has {rank} dimensions, 1 to {_MAX_DIMS} are allowed")
        shape = tuple(self._take(U64) for _ in range(rank))[::-1]
        kind = self._take(_U32)
        block = gguf_types.TYPES.get(kind)
        if block is None:
            stored = gguf_types.UNSUPPORTED.get(kind, f"type {kind}")
            supported = ", ".join(t.name for t in gguf_types.TYPES.values())
            raise ModelError(
                f"{self.path}: tensor {name!r} is stored as {stored}; supported are {supported}. "
                f"Choose a file quantized to one of these"
            )
        if min(shape) < 1 or shape[-1] % block.values:
            raise self.fail(f"tensor {name!r} of type {block.name} has impossible shape {shape}")
        return TensorInfo(name, block, shape, self._take(U64))

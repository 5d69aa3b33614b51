"""GGUFMetadata: what a GGUF file says beside its weights, by key. Arrays are decoded when they are asked for. Weights
are in gguf.py, which those do without who only read a vocabulary.
"""

import struct
from pathlib import Path

from headrace.core.errors import ModelError
from headrace.models.formats.gguf_header import STRING, U64, Array, Header, Scalar
from headrace.models.formats.mapped_file import map_file

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GGUFMetadata:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        self._header = Header(path, self._map, len(self._map))
        self._entries = self._header.entries

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> Scalar | None:
        """A scalar or string of the header; None if absent. Raises ModelError if it is an array."""
        value = self._entries.get(key)
        if isinstance(value, Array):
            raise ModelError(f"{self.path}: {key} is an array, expected a single value")
        return value

    def scalars(self) -> dict[str, Scalar]:
        """All entries that are not arrays."""
        return {key: value for key, value in self._entries.items() if not isinstance(value, Array)}

    def lists(self, longest: int) -> dict[str, list[int | float | bool]]:
        """All arrays of at most `longest` numbers."""
        arrays = {k: v for k, v in self._entries.items() if isinstance(v, Array)}
        return {k: self.numbers(k) for k, v in arrays.items() if v.kind != STRING and v.count <= longest}

    def strings(self, key: str) -> list[str]:
        """An array of strings. Raises ModelError if it is absent, of another type, or not UTF-8."""
        array = self._array(key)
        if array.kind != STRING:
            raise ModelError(f"{self.path}: {key} is an array of type {array.kind}, expected strings")
        out, position, unpack = [], array.begin, U64.unpack_from
        view = self._map
        try:
            for _ in range(array.count):
                begin = position + 8
                position = begin + unpack(view, position)[0]
                out.append(view[begin:position].decode())
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path}: {key} holds a string that is not UTF-8: {error}") from error
        return out

    def numbers(self, key: str) -> list[int | float | bool]:
        """An array of numbers. Raises ModelError if it is absent or an array of strings."""
        array = self._array(key)
        if array.kind == STRING:
            raise ModelError(f"{self.path}: {key} is an array of strings, expected numbers")
        return list(struct.unpack_from(f"<{array.count}{_CODES[array.kind]}", self._map, array.begin))

    def length(self, key: str) -> int:
        """Number of elements of an array. Raises ModelError if it is absent."""
        return self._array(key).count

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._entries if key.startswith(prefix))

    def raw(self, key: str) -> bytes:
        """The value of an entry as bytes, for hashing: an array's as stored."""
        value = self._entries[key]
        return self._map[value.begin : value.end] if isinstance(value, Array) else repr(value).encode()

    def _array(self, key: str) -> Array:
        value = self._entries.get(key)
        if not isinstance(value, Array):
            raise ModelError(f"{self.path}: {key} is {'missing' if value is None else 'not an array'}")
        return value

"""Reader of safetensors, one file or shards with an index, by memory map. Weights are F32, F16 and BF16; the other
types are pieces of quantized weights, which packed_source.py puts together.

The header is checked against the file's size before anything is allocated for it: its length, every offset, and
that tensors neither overlap nor disagree with their shapes. Layout: https://github.com/huggingface/safetensors
"""

import json
import math
import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError
from headrace.models.formats.join import widen
from headrace.models.formats.mapped_file import map_file, release_pages
from headrace.models.formats.weight_source import FloatVector, Form, check_no_overlap
from headrace.ops.content_digest import content_digest
from headrace.ops.matrix import Matrix

_FLOATS = ("F32", "F16", "BF16")
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "I32": "<i4", "I64": "<i8", "F8_E4M3": "u1"}
_MAX_HEADER_BYTES = 100 * 2**20
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class _Tensor:
    """begin and end are bytes in the mapped file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """One file: `tensors` by name, and their bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.tensors = _read_header(path, self._map)

    def data(self, tensor: _Tensor) -> npt.NDArray[np.uint8]:
        return self._bytes[tensor.begin : tensor.end]

    def release(self, tensor: _Tensor) -> None:
        release_pages(self._map, tensor.begin, tensor.end)


class SafetensorsFolder:
    """WeightSource of a folder's model.safetensors, or of the shards that its index names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of: dict[str, SafetensorsFile] = {}
        index = folder / _INDEX
        listed = _read_index(index) if index.is_file() else None
        for file_name in sorted(set(listed.values())) if listed is not None else [_SINGLE]:
            file = SafetensorsFile(folder / file_name)
            for name in file.tensors:
                if name in self._file_of:
                    raise ModelError(f"{file.path}: tensor {name!r} is also in {self._file_of[name].path}")
                self._file_of[name] = file
        for name, file_name in (listed or {}).items():
            if name not in self._file_of or self._file_of[name].path.name != file_name:
                raise ModelError(f"{index}: tensor {name!r} is not in {file_name}")

    def names(self) -> list[str]:
        return list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name)[1].shape

    def describe(self, name: str) -> str:
        file = self._file_of.get(name)
        return f"{name} in {self._folder if file is None else file.path}"

    @property
    def path(self) -> Path:
        return self._folder

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def dtype(self, name: str) -> str:
        return self._find(name)[1].dtype

    def array(self, name: str) -> npt.NDArray[Any]:
        """The tensor in its shape: integers as stored, floats as float32, F8_E4M3 as uint8 codes."""
        file, tensor = self._find(name)
        if tensor.dtype in _FLOATS:
            return _to_matrix(tensor.dtype, file.data(tensor), 1, -1).dequantize().reshape(tensor.shape)
        return np.require(file.data(tensor).view(_DTYPES[tensor.dtype]), requirements="A").reshape(tensor.shape)

    def matrix(self, name: str) -> Matrix:
        file, tensor = self._float(name)
        if len(tensor.shape) not in (2, 3):
            raise ModelError(f"{self.describe(name)} has shape {tensor.shape}, expected a matrix")
        *rows, k = tensor.shape
        return _to_matrix(tensor.dtype, file.data(tensor), math.prod(rows), k)

    def floats(self, name: str) -> Matrix:
        return widen(self.matrix(name))

    def form(self, name: str) -> Form:
        dtype = self._float(name)[1].dtype
        return Form(dtype, "bf16" if dtype == "BF16" else "f32")

    def vector(self, name: str) -> FloatVector:
        file, tensor = self._float(name)
        if len(tensor.shape) != 1:
            raise ModelError(f"{self.describe(name)} has shape {tensor.shape}, expected a vector")
        return _to_matrix(tensor.dtype, file.data(tensor), 1, tensor.shape[0]).dequantize().reshape(-1)

    def digest(self, name: str) -> bytes:
        file, tensor = self._find(name)
        return content_digest(f"{tensor.dtype} {tensor.shape}", file.data(tensor))

    def stored_bytes(self) -> dict[str, int]:
        sizes: Counter[str] = Counter()
        for name, file in self._file_of.items():
            tensor = file.tensors[name]
            sizes[tensor.dtype] += tensor.end - tensor.begin
        return dict(sizes)

    def release(self, name: str) -> None:
        file, tensor = self._find(name)
        file.release(tensor)

    def _float(self, name: str) -> tuple[SafetensorsFile, _Tensor]:
        file, tensor = self._find(name)
        if tensor.dtype not in _FLOATS:
            raise ModelError(
                f"tensor {self.describe(name)} is stored as {tensor.dtype}, which config.json does not explain; "
                f"weights that are not quantized are {', '.join(_FLOATS)}"
            )
        return file, tensor

    def _find(self, name: str) -> tuple[SafetensorsFile, _Tensor]:
        file = self._file_of.get(name)
        if file is None:
            raise ModelError(f"tensor {name} is missing")
        return file, file.tensors[name]


def _to_matrix(dtype: str, raw: npt.NDArray[np.uint8], n: int, k: int) -> Matrix:
    """F32 and BF16 stay views of the file where it is aligned."""
    if dtype == "BF16":
        return Matrix("bf16", n, k, np.require(raw.view("<u2"), requirements="A").reshape(n, k))
    if dtype == "F16":
        return Matrix("f32", n, k, raw.view("<f2").astype(np.float32).reshape(n, k))
    return Matrix("f32", n, k, np.require(raw.view("<f4"), requirements="A").reshape(n, k))


def _read_index(path: Path) -> dict[str, str]:
    """File name of every tensor. A file outside the folder is refused."""
    try:
        files = json.loads(path.read_bytes())["weight_map"]
        items = list(files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: not a valid index of safetensors: {error!r}") from error
    for name, file in items:
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelError(f"{path}: {name!r} lies in {file!r}; a .safetensors file in the same folder is allowed")
    return dict(items)


def _read_header(path: Path, data: mmap.mmap) -> dict[str, _Tensor]:
    if len(data) < 8:
        raise ModelError(f"{path}: not a valid safetensors file: {len(data)} bytes")
    length = struct.unpack_from("<Q", data)[0]
    if length > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise ModelError(f"{path}: not a valid safetensors file: a header of {length} bytes exceeds it")
    try:
        pairs = json.loads(data[8 : 8 + length], object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not a valid safetensors file: its header is not JSON: {error}") from error
    tensors: dict[str, _Tensor] = {}
    spans = []
    for name, fields in _pairs(path, "header", pairs).items():
        if name != "__metadata__":
            tensor = _read_tensor(path, name, _pairs(path, name, fields), 8 + length, len(data))
            tensors[name] = tensor
            spans.append((tensor.begin, tensor.end, name))
    check_no_overlap(spans, path)
    return tensors


def _pairs(path: Path, what: str, pairs: Any) -> dict[str, Any]:
    """A JSON object, decoded as a list of pairs so that a name given twice is seen."""
    if not isinstance(pairs, list) or not all(isinstance(p, tuple) for p in pairs):
        raise ModelError(f"{path}: not a valid safetensors file: {what} must be an object")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ModelError(f"{path}: not a valid safetensors file: {what} has a name twice")
    return found


def _read_tensor(path: Path, name: str, fields: dict[str, Any], data: int, size: int) -> _Tensor:
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelError(f"{path}: tensor {name!r} is stored as {dtype!r}; supported are {', '.join(_DTYPES)}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise ModelError(f"{path}: tensor {name!r} has shape {shape!r} and data_offsets {offsets!r}, expected naturals")
    values = math.prod(shape)
    begin, end = offsets
    if values < 1 or len(shape) > 8 or end - begin != values * np.dtype(_DTYPES[dtype]).itemsize:
        raise ModelError(
            f"{path}: tensor {name!r} of shape {shape} and type {dtype} cannot lie in bytes {begin} to {end}"
        )
    if data + end > size:
        raise ModelError(f"{path}: tensor {name!r} exceeds the file")
    return _Tensor(dtype, tuple(shape), data + begin, data + end)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)

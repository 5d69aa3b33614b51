"""How each quantization method lays a weight's tensors out in safetensors: which tensors belong together under the
module's name, what shape of weight they make, and how they are read. Every piece's type and shape is checked against
the others', by name.

    AWQ (gemm)          https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py
    GPTQ                https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear
    compressed-tensors  https://github.com/neuralmagic/compressed-tensors (compressors/quantized_compressors)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError
from headrace.models.formats.quantize import GROUP
from headrace.models.formats.quantized import Integers, QuantizedWeight, SmallFloats, unpack
from headrace.models.formats.safetensors import SafetensorsFolder
from headrace.models.formats.weight_source import Form

Shape = tuple[int, ...]
_FLOATS = ("F32", "F16", "BF16")


class Layout(Protocol):
    """anchor: the tensor that says that a module is quantized, whose other pieces have the names in `pieces`; what
    only concerns how others round activations or the KV cache is among them, and is not read."""

    @property
    def anchor(self) -> str: ...

    @property
    def pieces(self) -> tuple[str, ...]: ...

    def shape(self, module: Module) -> tuple[int, int]:
        """[n, k] of the module's weight."""

    def read(self, module: Module) -> QuantizedWeight: ...

    def form(self, module: Module) -> Form:
        """What the weight becomes. 8-bit integers are taken to have no zero points if they need not, as is usual."""


@dataclass(frozen=True, slots=True)
class Module:
    """The pieces of one weight in a folder."""

    folder: SafetensorsFolder
    name: str

    def has(self, piece: str) -> bool:
        return f"{self.name}.{piece}" in self.folder

    def type_and_shape(self, piece: str) -> tuple[str, Shape]:
        name = f"{self.name}.{piece}"
        return self.folder.dtype(name), self.folder.shape(name)

    def array(self, piece: str, types: tuple[str, ...], shape: Shape) -> npt.NDArray[Any]:
        """The piece's values; floats as float32. ModelError if it is missing, of another type or misshapen."""
        name = f"{self.name}.{piece}"
        if name not in self.folder:
            raise ModelError(f"tensor {self.folder.describe(name)} is missing beside its quantized weight")
        if (self.folder.dtype(name), self.folder.shape(name)) not in [(t, shape) for t in types]:
            raise ModelError(
                f"tensor {self.folder.describe(name)} is {self.folder.dtype(name)} of shape {self.folder.shape(name)}, "
                f"its quantized weight needs {' or '.join(types)} of shape {shape}"
            )
        return self.folder.array(name)

    def words(self, piece: str, shape: Shape) -> npt.NDArray[np.uint32]:
        return self.array(piece, ("I32",), shape).view(np.uint32)

    def scales(self, piece: str, shape: Shape) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(self.array(piece, _FLOATS, shape))

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.folder.describe(self.name)}: {what}")

    def groups(self, k: int, group: int) -> int:
        """Groups of `group` inputs (-1: all) among k."""
        group = k if group == -1 else group
        if k % group or k % 32:
            raise self.error(f"{k} inputs in groups of {group}; groups must divide inputs, and 32 too")
        return k // group


@dataclass(frozen=True, slots=True)
class Awq:
    """qweight [k, n/8] and qzeros [groups, n/8] hold eight outputs in a word, the even ones first."""

    group: int
    anchor: str = "qweight"
    pieces: tuple[str, ...] = ("qweight", "qzeros", "scales")

    def shape(self, module: Module) -> tuple[int, int]:
        k, words = _two(module, "qweight")
        return words * 8, k

    def read(self, module: Module) -> QuantizedWeight:
        n, k = self.shape(module)
        groups = module.groups(k, self.group)
        q = unpack(module.words("qweight", (k, n // 8)), 4, self._output)
        zero = unpack(module.words("qzeros", (groups, n // 8)), 4, self._output)
        scale = module.scales("scales", (groups, n))
        return Integers("AWQ", _turned(q), _turned(scale), _turned(zero).astype(np.float32))

    @staticmethod
    def _output(field: int) -> int:
        return field % 4 * 2 + field // 4

    def form(self, module: Module) -> Form:
        return _form("AWQ", 4, self.group, self.shape(module)[1])


@dataclass(frozen=True, slots=True)
class Gptq:
    """qweight [k * bits / 32, n] holds consecutive inputs in a word, qzeros [groups, n * bits / 32] outputs; zeros are
    stored less zero_offset. g_idx, if there, must say that inputs lie in order."""

    bits: int
    group: int
    zero_offset: int
    anchor: str = "qweight"
    pieces: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")

    def shape(self, module: Module) -> tuple[int, int]:
        words, n = _two(module, "qweight")
        return n, words * 32 // self.bits

    def read(self, module: Module) -> QuantizedWeight:
        n, k = self.shape(module)
        groups = module.groups(k, self.group)
        q = unpack(_turned(module.words("qweight", (k * self.bits // 32, n))), self.bits)
        zero = unpack(module.words("qzeros", (groups, n * self.bits // 32)), self.bits).astype(np.float32)
        scale = _turned(module.scales("scales", (groups, n)))
        if module.has("g_idx"):
            order = module.array("g_idx", ("I32",), (k,))
            if not np.array_equal(order, np.arange(k) // (k // groups)):
                raise module.error("g_idx reorders its inputs (desc_act), which is not supported")
        return _integers("GPTQ", q, self.bits, scale, _turned(zero) + np.float32(self.zero_offset))

    def form(self, module: Module) -> Form:
        return _form("GPTQ", self.bits, self.group, self.shape(module)[1])


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """compressed-tensors' pack-quantized: weight_packed [n, k * bits / 32] holds consecutive inputs in a word, offset
    to be natural; weight_zero_point [n * bits / 32, groups] outputs, the same way."""

    bits: int
    group: int
    anchor: str = "weight_packed"
    pieces: tuple[str, ...] = (
        "weight_packed",
        "weight_scale",
        "weight_shape",
        "weight_zero_point",
        "input_scale",
        "input_zero_point",
    )

    def shape(self, module: Module) -> tuple[int, int]:
        n, words = _two(module, "weight_packed")
        return n, words * 32 // self.bits

    def read(self, module: Module) -> QuantizedWeight:
        n, k = self.shape(module)
        if module.array("weight_shape", ("I64", "I32"), (2,)).tolist() != [n, k]:
            raise module.error(f"weight_shape says otherwise than weight_packed, which holds [{n}, {k}]")
        groups = module.groups(k, self.group)
        q = unpack(module.words("weight_packed", (n, k * self.bits // 32)), self.bits)
        scale = module.scales("weight_scale", (n, groups))
        zero = np.full_like(scale, 1 << (self.bits - 1))
        if module.has("weight_zero_point"):
            words = -(-n * self.bits // 32)
            packed = module.words("weight_zero_point", (words, groups))
            zero = np.ascontiguousarray(_turned(unpack(_turned(packed), self.bits))[:n]).astype(np.float32)
        return _integers(f"{self.bits}-bit integers", q, self.bits, scale, zero)

    def form(self, module: Module) -> Form:
        return _form(f"{self.bits}-bit integers", self.bits, self.group, self.shape(module)[1])


@dataclass(frozen=True, slots=True)
class PlainIntegers:
    """compressed-tensors' int-quantized: weight int8 [n, k], weight_scale per output, group or tensor."""

    group: int
    per_tensor: bool = False
    anchor: str = "weight_scale"
    pieces: tuple[str, ...] = (
        "weight",
        "weight_scale",
        "weight_zero_point",
        "input_scale",
        "input_zero_point",
    )

    def shape(self, module: Module) -> tuple[int, int]:
        return _two(module, "weight")

    def read(self, module: Module) -> QuantizedWeight:
        n, k = self.shape(module)
        q = module.array("weight", ("I8",), (n, k))
        groups = module.groups(k, self.group)
        scale = _one_scale(module, n) if self.per_tensor else module.scales("weight_scale", (n, groups))
        zero = None
        if module.has("weight_zero_point"):
            zero = module.array("weight_zero_point", ("I8",), scale.shape).astype(np.float32)
            zero = zero if zero.any() else None
        return Integers("8-bit integers with zero points", q, scale, zero)

    def form(self, module: Module) -> Form:
        if module.has("weight_zero_point"):
            return Form("8-bit integers with zero points", "q8", GROUP, "8-bit integers with zero points")
        return _form("8-bit integers", 8, self.group, self.shape(module)[1])


@dataclass(frozen=True, slots=True)
class Fp8:
    """weight F8_E4M3 [n, k] and a scale per block of rows and columns; (0, 0) for the whole tensor, 0 columns for all
    of a row."""

    block: tuple[int, int]
    scale: str = "weight_scale"

    @property
    def anchor(self) -> str:
        return self.scale

    @property
    def pieces(self) -> tuple[str, ...]:
        return ("weight", self.scale, "input_scale")

    def shape(self, module: Module) -> tuple[int, int]:
        return _two(module, "weight")

    def read(self, module: Module) -> QuantizedWeight:
        n, k = self.shape(module)
        module.groups(k, -1)
        codes = module.array("weight", ("F8_E4M3",), (n, k))
        rows, columns = self.block[0] or 1, self.block[1] or k
        if self.block == (0, 0):
            scale = _one_scale(module, n)
        else:
            scale = module.scales(self.scale, (-(-n // rows), -(-k // columns)))
        return SmallFloats("FP8", codes, E4M3, scale, (rows, columns))

    def form(self, module: Module) -> Form:
        return Form("FP8", "q8", GROUP, "FP8")


def _e4m3() -> npt.NDArray[np.float32]:
    """The values of all 256 codes: sign, four bits of exponent (bias 7), three of mantissa; no infinities."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    value[code & 127 == 127] = np.nan
    return np.where(code & 128, -value, value).astype(np.float32)


E4M3 = _e4m3()


def _two(module: Module, piece: str) -> tuple[int, int]:
    _, shape = module.type_and_shape(piece)
    if len(shape) != 2:
        raise module.error(f"{piece} has shape {shape}, expected a matrix")
    return shape[0], shape[1]


def _one_scale(module: Module, n: int) -> npt.NDArray[np.float32]:
    """One scale for the tensor, stored as a scalar or in one element, for each row."""
    _, shape = module.type_and_shape("weight_scale")
    return np.full((n, 1), module.scales("weight_scale", shape if shape in ((), (1,)) else (1,)).item(), np.float32)


def _turned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array.T)


def _integers(
    name: str,
    q: npt.NDArray[np.uint8],
    bits: int,
    scale: npt.NDArray[np.float32],
    zero: npt.NDArray[np.float32],
) -> Integers:
    """8-bit naturals become int8, and lose a zero point that is then nothing."""
    if bits == 4:
        return Integers(name, q, scale, zero)
    zero = zero - np.float32(128)
    return Integers(name, (q ^ np.uint8(128)).view(np.int8), scale, zero if zero.any() else None)


def _form(name: str, bits: int, group: int, k: int) -> Form:
    """Of integers whose groups are `group` inputs (-1: all k)."""
    group = k if group == -1 else group
    if group % GROUP:
        return Form(name, "q8", GROUP, name)
    return Form(name, "q4" if bits == 4 else "q8", group)

"""Matrix: a weight matrix in a neutral form, between file formats and kernels. Formats produce it, kernels pack
it for themselves, the numpy reference dequantizes it.

Schemes, for a matrix of n outputs and k inputs (y = x @ W.T):
    f32   data float32 [n, k]
    bf16  data uint16 [n, k], the upper half of a float32
    q8    data int8 [n, k], scale float32 [n, k/group];                       w = scale * q
    q4    data uint8 [n, k/32, 16], scale and minimum float32 [n, k/group];   w = scale * q + minimum, q in 0..15
          byte j of a run of 32 holds element j in its low and element j + 16 in its high nibble (as GGUF does)
group is a multiple of 32 that divides k. With q8 and q4 a linear op quantizes its activations to int8, one scale
per ACTIVATION_GROUP values along k.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Scheme = Literal["f32", "bf16", "q8", "q4"]
SCHEME_NAMES: dict[Scheme, str] = {
    "f32": "float32",
    "bf16": "bfloat16",
    "q8": "8-bit integers with a scale per 32",
    "q4": "4-bit integers with a scale and a minimum per 32",
}
ACTIVATION_GROUP = 32


@dataclass(frozen=True, slots=True)
class Matrix:
    """stored_as: the type in the file, where this is only the nearest that a scheme can hold; empty where exact."""

    scheme: Scheme
    n: int
    k: int
    data: npt.NDArray[np.generic]
    group: int = 0
    scale: npt.NDArray[np.float32] | None = None
    minimum: npt.NDArray[np.float32] | None = None
    stored_as: str = ""

    @property
    def quantized(self) -> bool:
        return self.scheme in ("q8", "q4")

    def dequantize(self) -> npt.NDArray[np.float32]:
        """float32 [n, k]: exactly the values that the scheme stands for."""
        if self.scheme == "f32":
            return np.asarray(self.data, np.float32)
        if self.scheme == "bf16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        assert self.scale is not None
        if self.scheme == "q8":
            groups = self.data.reshape(self.n, -1, self.group).astype(np.float32)
            return (groups * self.scale[:, :, None]).reshape(self.n, self.k)
        assert self.minimum is not None
        nibbles = self.data.astype(np.uint8, copy=False)
        q = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(self.n, -1, self.group)
        return (q.astype(np.float32) * self.scale[:, :, None] + self.minimum[:, :, None]).reshape(self.n, self.k)

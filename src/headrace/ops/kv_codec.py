"""Keys and values in and out of KV blocks, in numpy, by the layout of core/kv_layout.py: the definition of what
the kernels store and read. A cache is uint8 [num_blocks * block_bytes]; a layer is an index inside its group."""

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.kv_layout import KVLayout

Float = npt.NDArray[np.float32]
Stored = npt.NDArray[Any]
_ITEM = {"bf16": np.uint16, "fp32": np.float32, "int8": np.int8}


def narrow_bf16(x: Float) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even; NaN stays NaN."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (u + np.uint32(0x7FFF) + ((u >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (u >> 16) | 0x40, rounded).astype(np.uint16)


def widen_bf16(x: npt.NDArray[np.uint16]) -> Float:
    return (x.astype(np.uint32) << 16).view(np.float32)


def quantize_int8(x: Float) -> tuple[npt.NDArray[np.int8], Float]:
    """int8 values and float32 scales (max |x| / 127), one scale over the last axis. What is all below 1e-30 is 0:
    the inverse of its scale would be infinite."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    scale = np.where(largest < 1e-30, 0, largest / np.float32(127)).astype(np.float32)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.rint(x * inverse).astype(np.int8), scale


class KVCodec:
    """One layer of one cache. Blocks and slots are index arrays of equal shape."""

    def __init__(self, layout: KVLayout, cache: npt.NDArray[np.uint8], layer: int) -> None:
        blocks = cache.reshape(-1, layout.block_bytes)[:, : layout.note_offset]
        units = blocks.reshape(-1, layout.kv_heads, layout.num_layers, layout.unit_bytes)[:, :, layer]
        size, item = layout.block_size, _ITEM[layout.dtype]
        self._dtype = layout.dtype
        self._keys = _part(units, 0, (layout.k_dim, size), item)
        self._values = _part(units, layout.v_offset, (size, layout.v_dim), item)
        if layout.dtype == "int8":
            self._key_scales = _part(units, layout.k_scale_offset, (size,), np.float32)
            self._value_scales = _part(units, layout.v_scale_offset, (size,), np.float32)

    def write(self, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], k: Float, v: Float) -> None:
        """k float32 [n, kv_heads, k_dim], v float32 [n, kv_heads, v_dim]."""
        keys: Stored = k
        values: Stored = v
        if self._dtype == "int8":
            keys, k_scale = quantize_int8(k)
            values, v_scale = quantize_int8(v)
            self._key_scales[blocks, :, slots] = k_scale[..., 0]
            self._value_scales[blocks, :, slots] = v_scale[..., 0]
        elif self._dtype == "bf16":
            keys, values = narrow_bf16(k), narrow_bf16(v)
        self._keys[blocks, :, :, slots] = keys
        self._values[blocks, :, slots] = values

    def read(self, blocks: npt.NDArray[np.int32]) -> tuple[Float, Float]:
        """Whole blocks in order: k float32 [kv_heads, n * block_size, k_dim], v float32 likewise with v_dim."""
        k, v = self._keys[blocks].swapaxes(2, 3), self._values[blocks]
        if self._dtype == "bf16":
            k, v = widen_bf16(k), widen_bf16(v)
        elif self._dtype == "int8":
            k = k.astype(np.float32) * self._key_scales[blocks][..., None]
            v = v.astype(np.float32) * self._value_scales[blocks][..., None]
        heads = k.shape[1]
        return (
            k.swapaxes(0, 1).reshape(heads, -1, k.shape[3]),
            v.swapaxes(0, 1).reshape(heads, -1, v.shape[3]),
        )


def _part(units: npt.NDArray[np.uint8], offset: int, shape: tuple[int, ...], item: type) -> Stored:
    """A writable view [num_blocks, kv_heads, *shape] of the bytes from `offset` of every unit."""
    size = int(np.prod(shape)) * np.dtype(item).itemsize
    view: Stored = units[..., offset : offset + size].view(item)
    return view.reshape(*units.shape[:2], *shape)

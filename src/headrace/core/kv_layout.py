"""Where a key or value lies inside a KV block. One block is one contiguous region over all layers of its group,
KV-head-major, scales included, so that swap, checksum and transfer are one copy and a tensor-parallel slice of
heads is contiguous. Policy reads sizes from here, the kernels and the numpy reference read offsets.

    block  = [kv_head][layer of the group] unit
    unit   = K  [k_dim][block_size]      transposed: one vector load spans the block's tokens
             V  [block_size][v_dim]
             and for int8: K scale float32 [block_size], V scale float32 [block_size]  (one per token and head)

A block of a draft model ends with a note, int32 [NAME_WORDS + block_size]: the name of the prefix before it, and the
tokens of which its keys and values were computed, -1 where they were not (worker/drafters/notes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.core.errors import ConfigError

if TYPE_CHECKING:  # the command line needs names of types, and need not wait for the specs of models
    from headrace.core.model_spec import KVGroup

KVDtype = Literal["bf16", "fp32", "int8"]
KV_DTYPES: tuple[KVDtype, ...] = ("bf16", "fp32", "int8")
NAME_WORDS = 4
_ITEM_BYTES = {"bf16": 2, "fp32": 4, "int8": 1}


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Byte offsets inside a block of one KV group. Every unit starts at a multiple of 64 bytes."""

    num_layers: int
    kv_heads: int
    k_dim: int
    v_dim: int
    block_size: int
    dtype: KVDtype
    noted: bool = False

    @classmethod
    def of(cls, group: KVGroup, block_size: int, dtype: KVDtype) -> KVLayout:
        if dtype not in KV_DTYPES:
            raise ConfigError(f"kv_cache_dtype must be one of {', '.join(KV_DTYPES)}, got {dtype!r}")
        return cls(len(group.layers), group.kv_heads, group.k_dim, group.v_dim, block_size, dtype, group.noted)

    @property
    def item_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype]

    @property
    def v_offset(self) -> int:
        """Bytes from a unit's start to its values."""
        return _round_up(self.k_dim * self.block_size * self.item_bytes)

    @property
    def k_scale_offset(self) -> int:
        return self.v_offset + _round_up(self.v_dim * self.block_size * self.item_bytes)

    @property
    def v_scale_offset(self) -> int:
        return self.k_scale_offset + _round_up(4 * self.block_size)

    @property
    def unit_bytes(self) -> int:
        """Bytes of one (head, layer) of a block."""
        if self.dtype == "int8":
            return self.v_scale_offset + _round_up(4 * self.block_size)
        return self.k_scale_offset

    @property
    def head_bytes(self) -> int:
        return self.num_layers * self.unit_bytes

    @property
    def note_offset(self) -> int:
        return self.kv_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        note = _round_up(4 * (NAME_WORDS + self.block_size)) if self.noted else 0
        return self.note_offset + note


def _round_up(size: int, to: int = 64) -> int:
    return (size + to - 1) // to * to

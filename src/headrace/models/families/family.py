"""Family: how one kind of checkpoint maps to a ModelSpec and what its weights are called. A family is data and two
small functions; adding a dense one is one file here and one line in registry.py.

Settings are read through Fields, so that a missing or impossible value is refused with its name and file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import ModelError
from headrace.core.model_spec import ModelSpec

MAX_LAYERS = 4096
MAX_WIDTH = 1 << 24


class Fields:
    """Settings of a model file, by name, checked. `prefix` is put before every name (GGUF's architecture)."""

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.path = path

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Any:
        return self._values.get(self._prefix + name)

    def integer(self, name: str, default: int | None = None, *, high: int = MAX_WIDTH) -> int:
        """An integer from 1 to `high`."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise self.error(name, value, f"an integer from 1 to {high}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.error(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def error(self, name: str, value: Any, expected: str) -> ModelError:
        return ModelError(f"{self.path}: {self._prefix}{name} must be {expected}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Family:
    """architectures: names in config.json. gguf: general.architecture. from_gguf also takes what a GGUF
    file says by its tensors: vocabulary size, rope factors (or none), and whether the head is tied.
    gguf_paired_rope: GGUF stores q and k rows with rotary pairs adjacent (docs/decisions/gguf-rope-rows.md)."""

    name: str
    architectures: tuple[str, ...]
    gguf: str
    from_config: Callable[[Fields], ModelSpec]
    from_gguf: Callable[[Fields, int, tuple[float, ...], bool], ModelSpec]
    gguf_paired_rope: bool = False


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Where each weight of a dense decoder lies; {i} is the layer. Biases end in `.bias` instead of `.weight`.
    derivable: name endings of tensors that repeat what other settings say."""

    embedding: str
    final_norm: str
    head: str
    attention_norm: str
    q: str
    k: str
    v: str
    o: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    derivable: tuple[str, ...]


HUB_NAMES = WeightNames(
    embedding="model.embed_tokens.weight",
    final_norm="model.norm.weight",
    head="lm_head.weight",
    attention_norm="model.layers.{i}.input_layernorm.weight",
    q="model.layers.{i}.self_attn.q_proj.weight",
    k="model.layers.{i}.self_attn.k_proj.weight",
    v="model.layers.{i}.self_attn.v_proj.weight",
    o="model.layers.{i}.self_attn.o_proj.weight",
    mlp_norm="model.layers.{i}.post_attention_layernorm.weight",
    gate="model.layers.{i}.mlp.gate_proj.weight",
    up="model.layers.{i}.mlp.up_proj.weight",
    down="model.layers.{i}.mlp.down_proj.weight",
    derivable=("rotary_emb.inv_freq",),
)

GGUF_NAMES = WeightNames(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    head="output.weight",
    attention_norm="blk.{i}.attn_norm.weight",
    q="blk.{i}.attn_q.weight",
    k="blk.{i}.attn_k.weight",
    v="blk.{i}.attn_v.weight",
    o="blk.{i}.attn_output.weight",
    mlp_norm="blk.{i}.ffn_norm.weight",
    gate="blk.{i}.ffn_gate.weight",
    up="blk.{i}.ffn_up.weight",
    down="blk.{i}.ffn_down.weight",
    derivable=("rope_freqs.weight",),
)

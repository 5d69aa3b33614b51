"""Family: how one kind of checkpoint maps to a ModelSpec and what its weights are called. A family is data and two
small functions; adding one is one file here and one line in registry.py.

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

    def section(self, name: str, defaults: Mapping[str, Any]) -> Fields:
        """The settings of an object, with defaults for those it lacks."""
        values = self.get(name)
        if not isinstance(values, dict):
            raise self.error(name, values, "an object")
        prefix = f"{self._prefix}{name}."
        given = {key: value for key, value in values.items() if value is not None}
        return Fields({f"{prefix}{key}": value for key, value in {**defaults, **given}.items()}, self.path, prefix)

    def optional_number(self, name: str) -> float | None:
        """A positive finite number, or None where there is none."""
        return self.number(name) if name in self else None

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of `count` positive finite numbers."""
        values = self.get(name)
        if not isinstance(values, list | tuple) or len(values) != count:
            raise self.error(name, values, f"a list of {count} positive numbers")
        entries = Fields({f"{self._prefix}{name}[{i}]": v for i, v in enumerate(values)}, self.path, self._prefix)
        return tuple(entries.number(f"{name}[{i}]") for i in range(count))

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
class TensorFacts:
    """What a GGUF file says by its tensors alone. Rope factors divide the rotary frequencies: the plain ones always,
    the others within and beyond the original context; empty for none."""

    vocab_size: int
    tied: bool
    rope_factors: tuple[float, ...] = ()
    short_rope_factors: tuple[float, ...] = ()
    long_rope_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Where each weight of a decoder lies; {i} is the layer, {e} the expert. Biases end in `.bias` instead of
    `.weight`. qkv and gate_up name what holds those parts in one tensor, None if they are apart. Expert tensors
    without {e} hold all experts. derivable: name endings of tensors that repeat what other settings say. unreached:
    name beginnings of tensors that text alone never reaches."""

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
    q_norm: str
    k_norm: str
    attention_post_norm: str
    mlp_post_norm: str
    router: str
    expert_gate: str
    expert_up: str
    expert_down: str
    qkv: str | None = None
    gate_up: str | None = None
    unreached: tuple[str, ...] = ()


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
    q_norm="model.layers.{i}.self_attn.q_norm.weight",
    k_norm="model.layers.{i}.self_attn.k_norm.weight",
    attention_post_norm="model.layers.{i}.post_attention_layernorm.weight",
    mlp_post_norm="model.layers.{i}.post_feedforward_layernorm.weight",
    router="model.layers.{i}.mlp.gate.weight",
    expert_gate="model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
    expert_up="model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    expert_down="model.layers.{i}.mlp.experts.{e}.down_proj.weight",
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
    derivable=("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"),
    q_norm="blk.{i}.attn_q_norm.weight",
    k_norm="blk.{i}.attn_k_norm.weight",
    attention_post_norm="blk.{i}.post_attention_norm.weight",
    mlp_post_norm="blk.{i}.post_ffw_norm.weight",
    router="blk.{i}.ffn_gate_inp.weight",
    expert_gate="blk.{i}.ffn_gate_exps.weight",
    expert_up="blk.{i}.ffn_up_exps.weight",
    expert_down="blk.{i}.ffn_down_exps.weight",
)


@dataclass(frozen=True, slots=True)
class Family:
    """architectures: names in config.json. gguf: general.architecture, None where GGUF has none or we read none.
    gguf_paired_rope: GGUF stores q and k rows with rotary pairs adjacent (docs/decisions/gguf-rope-rows.md)."""

    name: str
    architectures: tuple[str, ...]
    from_config: Callable[[Fields], ModelSpec]
    gguf: str | None = None
    from_gguf: Callable[[Fields, TensorFacts], ModelSpec] | None = None
    gguf_paired_rope: bool = False
    hub_names: WeightNames = HUB_NAMES
    gguf_names: WeightNames = GGUF_NAMES

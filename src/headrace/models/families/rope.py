"""How config.json and GGUF metadata say which rotary embedding a model has, read into a Rope that needs nothing
else: defaults that depend on other settings are resolved here.
"""

import math
from typing import Any, Literal

from headrace.core.errors import ModelError
from headrace.core.model_spec import Rope
from headrace.models.families.family import MAX_WIDTH, Fields, TensorFacts

Kind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
Scaling = dict[str, float | int | str | tuple[float, ...]]

_KINDS: dict[str, Kind] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",  # its name in the first Phi-3 checkpoints
}


def config_rope(
    config: Fields, head_dim: int, max_position: int, *, layer_type: str = "full_attention", theta: float = 10000.0
) -> Rope:
    """Rope of a config.json, in the old writing (rope_theta, rope_scaling) and the new (rope_parameters), which may
    tell layer types apart. theta: the default."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(given, dict) and isinstance(given.get(layer_type), dict):
        given = given[layer_type]
    if not isinstance(given, dict):
        raise config.error("rope_scaling", given, "an object")
    rope = Fields({f"rope.{key}": value for key, value in given.items()}, config.path, "rope.")
    name = given.get("rope_type", given.get("type", "default"))
    if not isinstance(name, str) or name not in _KINDS:
        raise rope.error("rope_type", name, f"one of {', '.join(_KINDS)}")
    kind = _KINDS[name]
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    dim = int(head_dim * share)
    base = rope.number("rope_theta", config.number("rope_theta", theta))
    if base <= 1:
        raise rope.error("rope_theta", base, "more than 1")
    return Rope(base, dim, kind, tuple(sorted(_scaling(kind, rope, config, dim, max_position).items())))


def _scaling(kind: Kind, rope: Fields, config: Fields, dim: int, max_position: int) -> Scaling:
    if kind == "default":
        return {}
    if kind == "linear":
        return {"factor": rope.number("factor")}
    if kind == "dynamic":
        if dim <= 2:
            raise config.error("head_dim", dim, "more than 2 rotary dimensions for dynamic rope")
        return {"factor": rope.number("factor"), "original": max_position}
    # Beside the rope's own settings, as Phi-3 has it, it wins, as in transformers.
    name = "original_max_position_embeddings"
    original = config.number(name, rope.number(name, max_position))
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        return {
            **{n: rope.number(n) for n in names},
            "original_max_position_embeddings": original,
        }
    if original <= 1:
        raise rope.error("original_max_position_embeddings", original, "more than 1")
    factor = rope.number("factor", max_position / original)
    if kind == "yarn":
        attention = _yarn_attention(factor)
        if "mscale" in rope and "mscale_all_dim" in rope:
            attention = _yarn_attention(factor, rope.number("mscale")) / _yarn_attention(
                factor, rope.number("mscale_all_dim")
            )
        return {
            "factor": factor,
            "original": original,
            "attention_factor": rope.number("attention_factor", attention),
            "beta_fast": rope.number("beta_fast", 32.0),
            "beta_slow": rope.number("beta_slow", 1.0),
            "truncate": int(rope.flag("truncate", True)),
        }
    stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {
        "original": original,
        "attention_factor": rope.number("attention_factor", stretched),
        "short_factor": rope.numbers("short_factor", dim // 2),
        "long_factor": rope.numbers("long_factor", dim // 2),
    }


def _yarn_attention(factor: float, mscale: float = 1.0) -> float:
    """arXiv:2309.00071, equation 22."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def gguf_rope(header: Fields, head_dim: int, facts: TensorFacts) -> Rope:
    """Rope of GGUF metadata and of the tensors that hold its factors."""
    theta = header.number("rope.freq_base", 10000.0)
    if theta <= 1:
        raise header.error("rope.freq_base", theta, "more than 1")
    dim = header.integer("rope.dimension_count", head_dim)
    kind: Any = header.get("rope.scaling.type") or "none"
    for factors in (facts.rope_factors, facts.short_rope_factors, facts.long_rope_factors):
        if factors and (len(factors) != dim // 2 or min(factors) <= 0):
            raise ModelError(f"{header.path}: each tensor of rope factors must hold {dim // 2} positive numbers")
    if facts.long_rope_factors and facts.short_rope_factors:
        scaling: Scaling = {
            "original": header.number("rope.scaling.original_context_length"),
            "attention_factor": header.number("rope.scaling.attn_factor", 1.0),
            "short_factor": facts.short_rope_factors,
            "long_factor": facts.long_rope_factors,
        }
        return Rope(theta, dim, "longrope", tuple(sorted(scaling.items())))
    if kind not in ("none", "linear", "yarn"):
        raise header.error("rope.scaling.type", kind, "none, linear or yarn, or come with its factors as tensors")
    if facts.rope_factors:
        return Rope(theta, dim, "llama3", (("frequency_factors", facts.rope_factors),))
    if kind == "none":
        return Rope(theta, dim)
    factor = header.number("rope.scaling.factor")
    if kind == "linear":
        return Rope(theta, dim, "linear", (("factor", factor),))
    scaling = {
        "factor": factor,
        "original": header.number("rope.scaling.original_context_length"),
        "attention_factor": header.number("rope.scaling.attn_factor", 1.0) * _yarn_attention(factor),
        "beta_fast": header.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": header.number("rope.scaling.yarn_beta_slow", 1.0),
        "truncate": 1,
    }
    return Rope(theta, dim, "yarn", tuple(sorted(scaling.items())))


def longest_context(rope: Rope, max_position: int) -> int:
    """Positions that a model may be given: dynamic and yarn reach past what config.json calls its longest."""
    scaling: dict[str, Any] = dict(rope.scaling)
    if rope.kind in ("dynamic", "yarn"):
        return max(max_position, int(min(scaling["original"] * scaling["factor"], MAX_WIDTH)))
    return max_position

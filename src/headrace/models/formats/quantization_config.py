"""config.json's quantization_config: which layout a quantized checkpoint has. Whatever it asks for that would not be
done is refused by name; what only tells how others round activations is not needed, for ours are rounded more finely.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.core.errors import ModelError
from headrace.models.formats.packed_layouts import Awq, Fp8, Gptq, Layout, PackedIntegers, PlainIntegers

SUPPORTED = (
    "awq (4 bits, gemm), gptq (4 or 8 bits, desc_act false), compressed-tensors (W4A16 and W8A16 pack-quantized, W8A8 "
    "int-quantized, FP8 float-quantized) and fp8"
)


def quantization_layout(config: dict[str, Any], path: Path) -> Layout | None:
    """The layout that config.json (at `path`) says its weights have; None for floats. Raises ModelError naming what
    is not supported, and what is."""
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return None
    if not isinstance(found, dict):
        raise ModelError(f"{path}: quantization_config must be an object, got {found!r}")
    settings = _Settings(found, path)
    method = found.get("quant_method", "compressed-tensors" if "config_groups" in found else None)
    readers = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed, "fp8": _fp8}
    reader = readers.get(method) if isinstance(method, str) else None
    if reader is None:
        raise ModelError(f"{path}: quantization method {method!r} is not supported; supported are {SUPPORTED}")
    return reader(settings)


class _Settings:
    """An object of quantization_config; `where` names it in messages."""

    def __init__(self, values: dict[str, Any], path: Path, where: str = "quantization_config") -> None:
        self.values, self.path, self.where = values, path, where

    def choice(self, name: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
        value = self.values.get(name, default)
        if not any(value == a and type(value) is type(a) for a in allowed):
            raise self.error(name, " or ".join(map(repr, allowed)))
        return value

    def group(self, name: str = "group_size") -> int:
        """-1 for all of a row, or a positive number."""
        value = self.values.get(name)
        if type(value) is not int or value == 0 or value < -1 or value > 1 << 24:
            raise self.error(name, "-1 or a positive number")
        return value

    def inner(self, name: str) -> _Settings:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return _Settings(value, self.path, f"{self.where}.{name}")

    def refuse(self, *names: str) -> None:
        """Settings that ask for something which is not done here."""
        for name in names:
            if self.values.get(name):
                raise self.error(name, "absent or empty")

    def error(self, name: str, expected: str) -> ModelError:
        return ModelError(f"{self.path}: {self.where}.{name} must be {expected}, got {self.values.get(name)!r}")


def _awq(settings: _Settings) -> Layout:
    settings.choice("bits", (4,))
    settings.choice("version", ("gemm", "GEMM"), "gemm")
    settings.choice("zero_point", (True,), True)
    return Awq(settings.group())


def _gptq(settings: _Settings) -> Layout:
    settings.choice("desc_act", (False,), False)
    settings.refuse("dynamic")
    form = settings.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    return Gptq(settings.choice("bits", (4, 8)), settings.group(), 1 if form == "gptq" else 0)


def _fp8(settings: _Settings) -> Layout:
    settings.choice("fmt", ("e4m3",), "e4m3")
    block = settings.values.get("weight_block_size")
    if block is None:
        return Fp8((0, 0))
    return Fp8(_block(settings, block, "weight_block_size"), "weight_scale_inv")


def _block(settings: _Settings, value: Any, name: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(v) is int and 0 < v < 1 << 24 for v in value):
        raise settings.error(name, "two positive numbers")
    return value[0], value[1]


def _compressed(settings: _Settings) -> Layout:
    settings.refuse("transform_config")
    sparsity = settings.values.get("sparsity_config") or {"format": "dense"}
    _Settings(sparsity if isinstance(sparsity, dict) else {}, settings.path, "sparsity_config").choice(
        "format", ("dense",)
    )
    kind = settings.choice("format", ("pack-quantized", "int-quantized", "float-quantized"))
    groups = settings.inner("config_groups")
    layouts = {_scheme(groups.inner(name).inner("weights"), kind) for name in groups.values}
    if len(layouts) != 1:
        raise ModelError(f"{settings.path}: {groups.where} must ask for one scheme of weights, got {len(layouts)}")
    return layouts.pop()


def _scheme(weights: _Settings, kind: str) -> Layout:
    strategy = weights.choice("strategy", ("group", "channel", "tensor", "block"))
    weights.choice("actorder", (None, False, "weight", "static"))
    weights.choice("dynamic", (False,), False)
    group = weights.group() if strategy == "group" else -1
    if kind == "pack-quantized":
        weights.choice("type", ("int",))
        weights.choice("strategy", ("group", "channel"))
        return PackedIntegers(weights.choice("num_bits", (4, 8)), group)
    weights.choice("num_bits", (8,))
    if kind == "int-quantized":
        weights.choice("type", ("int",))
        weights.choice("strategy", ("group", "channel", "tensor"))
        return PlainIntegers(group, strategy == "tensor")
    weights.choice("type", ("float",))
    if strategy == "block":
        return Fp8(_block(weights, weights.values.get("block_structure"), "block_structure"))
    return Fp8({"group": (1, group), "channel": (1, 0), "tensor": (0, 0)}[strategy])

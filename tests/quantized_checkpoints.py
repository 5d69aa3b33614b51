"""Quantized safetensors checkpoints for tests, packed value by value as the methods' own code does it: slow and plain,
so that it shares nothing with the reader. Each packer takes a weight and returns the tensors of its module and the
values that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Packed = tuple[Tensors, torch.Tensor]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def integers(weight: torch.Tensor, group: int, levels: int, *, symmetric: bool) -> tuple[torch.Tensor, ...]:
    """q [n, k] in 0..levels, scale and zero [n, groups]: w = scale * (q - zero), scale as float16 holds it."""
    runs = weight.reshape(len(weight), -1, group)
    if symmetric:
        scale = (runs.abs().amax(2) * 2 / (levels - 1)).half().float()
        zero = torch.full_like(scale, (levels + 1) // 2)
    else:
        scale = ((runs.amax(2) - runs.amin(2)) / levels).half().float()
        zero = (-runs.amin(2) / scale).round().clamp(0, levels)
    q = (runs / scale[:, :, None] + zero[:, :, None]).round().clamp(0, levels)
    return q.reshape(weight.shape).to(torch.int64), scale, zero.to(torch.int64)


def values(q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    runs = q.reshape(len(q), scale.shape[1], -1)
    return (scale[:, :, None] * (runs - zero[:, :, None])).reshape(q.shape)


def pack_columns(rows: torch.Tensor, bits: int, order: list[int] | None = None) -> torch.Tensor:
    """int32 [rows, words]: runs of 32 / bits columns in one word."""
    count = 32 // bits
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % count))
    words = torch.zeros(len(rows), rows.shape[1] // count, dtype=torch.int64)
    for field in range(count):
        words |= rows[:, (order or list(range(count)))[field] :: count] << (field * bits)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def awq(weight: torch.Tensor, group: int) -> Packed:
    q, scale, zero = integers(weight, group, 15, symmetric=False)
    tensors = {
        "qweight": pack_columns(q.T, 4, AWQ_ORDER),
        "qzeros": pack_columns(zero.T, 4, AWQ_ORDER),
        "scales": scale.T.half().contiguous(),
    }
    return tensors, values(q, scale, zero)


def gptq(weight: torch.Tensor, group: int, *, bits: int = 4, symmetric: bool = True, offset: int = 1) -> Packed:
    q, scale, zero = integers(weight, group, 2**bits - 1, symmetric=symmetric)
    zero = zero.clamp(min=1)
    tensors = {
        "qweight": pack_columns(q, bits).T.contiguous(),
        "qzeros": pack_columns(zero.T - offset, bits),
        "scales": scale.T.half().contiguous(),
        "g_idx": (torch.arange(weight.shape[1]) // group).to(torch.int32),
    }
    return tensors, values(q, scale, zero)


def pack_quantized(weight: torch.Tensor, group: int, *, bits: int = 4, symmetric: bool = True) -> Packed:
    q, scale, zero = integers(weight, group, 2**bits - 1, symmetric=symmetric)
    tensors = {
        "weight_packed": pack_columns(q, bits),
        "weight_scale": scale.half(),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack_columns(zero.T, bits).T.contiguous()
    return tensors, values(q, scale, zero)


def int_quantized(weight: torch.Tensor, group: int) -> Packed:
    runs = weight.reshape(len(weight), -1, group)
    scale = (runs.abs().amax(2) / 127).half().float()
    q = (runs / scale[:, :, None]).round().clamp(-127, 127).reshape(weight.shape)
    tensors = {"weight": q.to(torch.int8), "weight_scale": scale.half()}
    return tensors, values(q, scale, torch.zeros_like(scale))


def float_quantized(weight: torch.Tensor, block: tuple[int, int], *, scale_name: str = "weight_scale") -> Packed:
    """FP8 with a scale per block of rows and columns, of which the last may be cut short; (0, 0): one for all."""
    rows, columns = (side or length for side, length in zip(block, weight.shape, strict=True))
    scale = torch.zeros(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    codes, exact = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn), torch.zeros_like(weight)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            scale[i, j] = weight[part].abs().max() / 448
            codes[part] = (weight[part] / scale[i, j]).to(torch.float8_e4m3fn)
            exact[part] = codes[part].float() * scale[i, j]
    return {"weight": codes, scale_name: scale.reshape(1) if block == (0, 0) else scale}, exact


def quantize_checkpoint(
    folder: Path,
    model: transformers.PreTrainedModel,
    pack: Callable[[torch.Tensor], Packed],
    config: dict[str, Any],
) -> None:
    """Replace the layers' matrices in `folder` by packed ones, and those of `model` by what these stand for."""
    tensors = load_file(folder / "model.safetensors")
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and ".layers." in name:
            pieces, exact = pack(weight.detach())
            weight.data = exact
            del tensors[name]
            tensors |= {name.removesuffix("weight") + piece: tensor for piece, tensor in pieces.items()}
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """quantization_config of a compressed-tensors checkpoint."""
    scheme = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, **weights}
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": activations}},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }

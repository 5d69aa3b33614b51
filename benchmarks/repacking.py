"""What re-packing costs: for each stored type that no kernel holds exactly, the perplexity of a model whose float
weights were quantized to that type, computed exactly, and computed as Headrace re-packs it. All in float32, so that
nothing but the weights differs. The quantizers are plain ones: what they lose is no measure of the types.

    python benchmarks/repacking.py --text wikitext2_test.txt.gz --window 1024 --windows 4
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.bench.perplexity import cut_windows, measure_perplexity
from headrace.commands.evaluate import tokenize_file
from headrace.core.config import DEFAULT_MODEL, Config
from headrace.engine.drive import drive
from headrace.launch import build_engine
from headrace.models.formats import gguf_blocks, gguf_matrix
from headrace.models.formats.gguf import GGUFFile
from headrace.models.formats.packed_layouts import E4M3
from headrace.models.formats.quantized import Integers, SmallFloats
from headrace.models.sources import locate
from headrace.ops.matrix import Matrix

Float = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def _half(x: Float) -> tuple[Bytes, Float]:
    """float16 of x [...] as bytes [..., 2], and its value."""
    half = x.astype(np.float16)
    return half[..., None].view(np.uint8), half.astype(np.float32)


def _over(x: Float, scale: Float) -> Float:
    return np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)


def _affine(x: Float, levels: int) -> tuple[Float, Float]:
    """Scale and minimum (0 at most) of the last axis, for integers from 0 to levels."""
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    return (high - low) / np.float32(levels), low


def q5_1(x: Float) -> Bytes:
    runs = x.reshape(len(x), -1, 32)
    scale, low = _affine(runs, 31)
    (d, scale), (m, low) = _half(scale), _half(low)
    q = np.clip(np.rint(_over(runs - low[..., None], scale[..., None])), 0, 31).astype(np.uint8)
    high = np.packbits(q >> 4, axis=2, bitorder="little")
    return np.concatenate([d, m, high, (q[..., :16] & 15) | (q[..., 16:] & 15) << 4], axis=2)


def _k_scales(runs: Float, levels: int, steps: int) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
    """Of groups with minima: bytes of d and dmin, integer scales and minima up to steps, and the integers."""
    scale, low = _affine(runs, levels)
    (d, d_value), (m, m_value) = _half(scale.max(-1) / steps), _half(-low.min(-1) / steps)
    scales = np.clip(np.rint(_over(scale, d_value[..., None])), 0, steps).astype(np.uint8)
    minima = np.clip(np.rint(_over(-low, m_value[..., None])), 0, steps).astype(np.uint8)
    step, offset = d_value[..., None] * scales, m_value[..., None] * minima
    q = np.clip(np.rint(_over(runs + offset[..., None], step[..., None])), 0, levels).astype(np.uint8)
    return d, m, scales, minima, q


def q5_k(x: Float) -> Bytes:
    d, m, s, o, q = _k_scales(x.reshape(len(x), -1, 8, 32), 31, 63)
    packed = [
        s[..., :4] | (s[..., 4:] >> 4) << 6,
        o[..., :4] | (o[..., 4:] >> 4) << 6,
        s[..., 4:] & 15 | o[..., 4:] << 4,
    ]
    high = np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=2)
    low = (q[:, :, ::2] & 15) | (q[:, :, 1::2] & 15) << 4
    return np.concatenate([d, m, *packed, high, low.reshape(*low.shape[:2], -1)], axis=2)


def q2_k(x: Float) -> Bytes:
    d, m, s, o, q = _k_scales(x.reshape(len(x), -1, 16, 16), 3, 15)
    fields = q.reshape(*q.shape[:2], 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed = np.bitwise_or.reduce(fields, axis=3).reshape(*q.shape[:2], 64)
    return np.concatenate([s | o << 4, packed, d, m], axis=2)


def q6_k(x: Float) -> Bytes:
    runs = x.reshape(len(x), -1, 16, 16)
    scale = np.abs(runs).max(-1) / np.float32(31)
    d, d_value = _half(scale.max(-1) / 127)
    s = np.clip(np.rint(_over(scale, d_value[..., None])), 0, 127).astype(np.uint8)
    step = d_value[..., None] * s
    q = np.clip(np.rint(_over(runs, step[..., None])) + 32, 0, 63).astype(np.uint8).reshape(*runs.shape[:2], 2, 4, 32)
    low = (q[:, :, :, :2] & 15) | (q[:, :, :, 2:] & 15) << 4
    high = np.bitwise_or.reduce((q >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=3)
    return np.concatenate([low.reshape(*q.shape[:2], 128), high.reshape(*q.shape[:2], 64), s, d], axis=2)


def _fp8(x: Float, rows: int, columns: int) -> SmallFloats:
    """Codes of E4M3 under a scale for each block of rows and columns (0: all of a row)."""
    columns = columns or x.shape[1]
    padded = np.zeros((-(-len(x) // rows) * rows, -(-x.shape[1] // columns) * columns), np.float32)
    padded[: len(x), : x.shape[1]] = np.abs(x)
    scale = padded.reshape(len(padded) // rows, rows, -1, columns).max((1, 3)) / np.float32(448)
    wide = np.repeat(np.repeat(scale, rows, 0), columns, 1)[: len(x), : x.shape[1]]
    order = np.argsort(E4M3[:127], kind="stable")  # 0 to 448
    positive = E4M3[:127][order]
    edges = (positive[1:] + positive[:-1]) / 2
    codes = order[np.searchsorted(edges, np.abs(_over(x, wide)))].astype(np.uint8)
    return SmallFloats("FP8", codes | (x < 0).astype(np.uint8) << 7, E4M3, scale, (rows, columns))


def _zero_points(x: Float) -> Integers:
    scale, low = _affine(x, 255)
    zero = np.rint(_over(-low, scale)) - 128
    q = np.clip(np.rint(_over(x, scale[:, None])) + zero[:, None], -128, 127).astype(np.int8)
    return Integers("8-bit integers with zero points", q, scale[:, None], zero[:, None])


Pair = tuple[Float, Float]
"""A matrix as stored, and as it is re-packed."""


def _gguf(kind: str, quantize: Callable[[Float], Bytes], x: Float) -> Pair:
    block = next(block for block in gguf_blocks.TYPES.values() if block.name == kind)
    n, k = x.shape
    if k % block.values:
        return x, x
    raw = np.ascontiguousarray(quantize(x)).reshape(-1)
    return gguf_matrix.to_floats(block, raw, n, k), gguf_matrix.to_matrix(block, raw, n, k).dequantize()


def _safetensors(quantize: Callable[[Float], SmallFloats | Integers], x: Float) -> Pair:
    stored = quantize(x)
    return stored.floats(), stored.matrix().dequantize()


TYPES: dict[str, Callable[[Float], Pair]] = {
    "Q2_K": partial(_gguf, "Q2_K", q2_k),
    "Q5_1": partial(_gguf, "Q5_1", q5_1),
    "Q5_K": partial(_gguf, "Q5_K", q5_k),
    "Q6_K": partial(_gguf, "Q6_K", q6_k),
    "FP8, a scale per output": partial(_safetensors, lambda x: _fp8(x, 1, 0)),
    "FP8, a scale per 128 x 128": partial(_safetensors, lambda x: _fp8(x, 128, 128)),
    "8-bit integers with zero points": partial(_safetensors, _zero_points),
}


def perplexity(model: str, windows: list[list[int]], change: Callable[[Float], Float]) -> float:
    """Of the model with every matrix changed."""
    original = GGUFFile.floats

    def changed(file: GGUFFile, name: str) -> Matrix:
        matrix = original(file, name)
        return Matrix("f32", matrix.n, matrix.k, change(matrix.dequantize()))

    GGUFFile.floats = changed  # type: ignore[method-assign]
    try:
        config = Config(
            model=model,
            quantization="none",
            kv_cache_dtype="fp32",
            max_model_len=len(windows[0]) + 1,
            packed_cache_gib=0,
        )
        engine = build_engine(config.resolve()).engine
        return measure_perplexity(partial(drive, engine, clock=time.monotonic), windows, lambda tokens: None).perplexity
    finally:
        GGUFFile.floats = original  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF model")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--types", nargs="*", default=list(TYPES))
    given = parser.parse_args()
    model = str(locate(given.model))
    windows = cut_windows(tokenize_file(model, given.text), given.window, given.windows)
    for name in given.types:
        stored = perplexity(model, windows, lambda x, name=name: TYPES[name](x)[0])
        repacked = perplexity(model, windows, lambda x, name=name: TYPES[name](x)[1])
        print(f"{name:<32} {stored:9.3f} {repacked:9.3f} {100 * (repacked / stored - 1):+7.3f} %", flush=True)


if __name__ == "__main__":
    main()

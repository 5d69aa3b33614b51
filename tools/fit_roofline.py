"""Fit the few numbers of policy/kernel_curves.py to measured kernels, and print policy/fitted_kernels.py's table.

Reads the tables of ai-dynamo/aiconfigurator (Apache-2.0) from HEADRACE_DATA/gpu_timings; needs pyarrow, which is in the
`test` extra. Descends the median of relative errors one number after the other, so it needs no solver.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.core.hardware import Hardware, known_hardware
from headrace.core.model_spec import item_bytes
from headrace.plan.kernel_tables import GPUS, all_reduces, decodes, matrices, prompts

Array = npt.NDArray[np.float64]
DATA = Path(os.environ.get("HEADRACE_DATA", "../shared/data")) / "gpu_timings"
ORDER = 4.0


def descend(model: Callable[[Array], Array], measured: Array, start: tuple[float, ...]) -> tuple[list[float], float]:
    """Numbers above 0 that make the mean of |log(model / measured)| least, and the median relative error with them."""
    numbers, step = np.array(start, np.float64), 0.5

    def loss(at: Array) -> float:
        return float(np.abs(np.log(model(at) / measured)).mean())

    best = loss(numbers)
    while step > 1e-3:
        improved = False
        for i in range(len(numbers)):
            for factor in (1 + step, 1 / (1 + step)):
                trial = numbers.copy()
                trial[i] *= factor
                if (value := loss(trial)) < best - 1e-9:
                    numbers, best, improved = trial, value, True
        step = step if improved else step / 2
    error = float(np.median(np.abs(model(numbers) - measured) / measured))
    return [float(f"{x:.3g}") for x in numbers], error


def fit_gemm(gpus: Sequence[Hardware], dtype: str) -> tuple[list[float], float]:
    """One curve for all of these. The last number is what a kernel that runs alone takes beside the rest: a step's
    graph hides it."""

    parts = []
    for gpu in gpus:
        t = matrices(DATA / gpu.name, dtype)
        m, n, k = (t[x].astype(np.float64) for x in "mnk")
        times = (
            2 * m * n * k / gpu.peak(dtype),
            n * k * item_bytes(dtype) / gpu.bandwidth,
            2 * m * (n + k) / gpu.bandwidth,
        )
        parts.append((m, *times, t["latency"] / 1e3))
    m, arithmetic, weights, activations, measured = (np.concatenate(part) for part in zip(*parts, strict=True))

    def model(x: Array) -> Array:
        compute, memory, rows, outside, fixed = x
        inside = ((arithmetic / compute * (1 + rows / m)) ** ORDER + (weights / memory) ** ORDER) ** (1 / ORDER)
        return fixed + activations / outside + inside

    return descend(model, measured, (0.7, 0.8, 30.0, 1.0, 3e-6))


def fit_prefill(gpu: Hardware) -> tuple[list[float], float]:
    t = prompts(DATA / gpu.name)
    length = t["isl"].astype(np.float64)
    work = 2 * t["batch_size"] * length**2 / 2 * t["num_heads"] * 256 / gpu.peak("bf16")
    return descend(lambda x: x[2] + work / x[0] * (1 + x[1] / (length / 2)), t["latency"] / 1e3, (0.5, 200.0, 1e-5))


def fit_decode(gpu: Hardware, cache: str = "bf16") -> tuple[list[float], float]:
    t = decodes(DATA / gpu.name, "bfloat16" if cache == "bf16" else cache)
    batch = t["batch_size"].astype(np.float64)
    traffic = batch * (t["step"] + 1) * t["num_key_value_heads"] * 256 * item_bytes(cache) / gpu.bandwidth
    return descend(lambda x: x[2] + x[1] * batch + traffic / x[0], t["latency"] / 1e3, (0.8, 1e-8, 1e-5))


def fit_all_reduce(gpu: Hardware) -> tuple[list[float], float]:
    t = all_reduces(DATA / gpu.name)
    ranks = t["num_gpus"].astype(np.float64)
    # Sizes are counted in values of 2 bytes: only so do eight devices reach no more than their link.
    sent = 2 * 2 * t["message_size"] * (ranks - 1) / ranks / gpu.link
    return descend(lambda x: x[1] + x[2] * ranks + sent / x[0], t["latency"] / 1e3, (0.6, 3e-6, 3e-7))


def main() -> int:
    gpus = [known_hardware(name) for name in GPUS]
    # H100 and H200 multiply alike; together they tell arithmetic from what goes on around it.
    hopper = [gpu for gpu in gpus if "fp8" in dict(gpu.peaks)]
    found = {"fp8 gemm": fit_gemm(hopper, "fp8")}
    for gpu in hopper:
        found[f"{gpu.name} decode of 8 bits"] = fit_decode(gpu, "fp8")
    for gpu in gpus:
        found[f"{gpu.name} gemm"] = fit_gemm([gpu], "bf16")
        found[f"{gpu.name} prefill"] = fit_prefill(gpu)
        found[f"{gpu.name} decode"] = fit_decode(gpu)
        found[f"{gpu.name} all-reduce"] = fit_all_reduce(gpu)
    for kind, (numbers, error) in found.items():
        sys.stdout.write(f"{kind:<18}{', '.join(f'{x:g}' for x in numbers):<44}{error:.1%}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

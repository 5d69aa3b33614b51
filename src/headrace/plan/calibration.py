"""Refit a backend's few numbers to runs of it: least absolute relative errors, pulled toward the numbers that were
there, so that ten runs move what they show and leave the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ConfigError
from headrace.plan.closed_loop import VLLM, Overheads, latency
from headrace.plan.runs import Run

Matrix = npt.NDArray[np.float64]

# Toward the numbers before, beside a weight of 1 for all runs. Kernels are much the same everywhere: what differs is
# sooner the host's doing, so the first number of each fit, by which kernels are slower, is held.
_PULL = 0.003
_HELD = 0.3
_LEAST_ERROR = 0.02  # relative; smaller ones weigh no more
_ROUNDS = 30
_SWEEPS = 60


def calibrate(runs: Sequence[Run], start: Overheads = VLLM) -> Overheads:
    """Numbers fitted to the runs whose clients the cache holds. ConfigError where there is none."""
    inside = [run for run in runs if not run.past_capacity]
    if not inside:
        raise ConfigError("there is no run to calibrate with whose clients the cache holds at once")
    rows = np.array([[r.terms.decode, 1.0, r.load.clients, r.terms.shared] for r in inside])
    before = np.array([start.kernels, start.step, start.request, start.interference])
    numbers = _fit(rows, np.array([r.measured.tpot for r in inside]), before)
    fitted = replace(start, **dict(zip(("kernels", "step", "request", "interference"), numbers, strict=True)))
    tokens = [latency(r.terms, r.load, fitted).tpot for r in inside]
    rows = np.array([[r.terms.prompt, r.load.clients * r.terms.prompt, t] for r, t in zip(inside, tokens, strict=True)])
    before = np.array([start.prompt, start.burst, start.wait])
    numbers = _fit(rows, np.array([r.measured.ttft for r in inside]), before)
    return replace(fitted, **dict(zip(("prompt", "burst", "wait"), numbers, strict=True)))


def _fit(rows: Matrix, measured: Matrix, before: Matrix) -> list[float]:
    """Numbers >= 0, one for each column: descent of reweighted least squares, one coordinate after the other."""
    columns, ones = rows * before / measured[:, None], np.ones(len(measured))
    share = np.ones(len(before))  # of each number before
    pull = np.array([_HELD] + [_PULL] * (len(before) - 1)) / len(before)
    for _ in range(_ROUNDS):
        weight = 1 / np.maximum(np.abs(columns @ share - ones), _LEAST_ERROR)
        weight /= weight.sum()
        gram = (columns.T * weight) @ columns + np.diag(pull)
        wanted = (columns.T * weight) @ ones + pull
        for _ in range(_SWEEPS):
            for i in range(len(share)):
                share[i] = max(0.0, share[i] + (wanted[i] - gram[i] @ share) / gram[i, i])
    return [float(x) for x in share * before]

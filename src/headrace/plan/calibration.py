"""Refit a backend's few numbers to runs of it: least absolute relative errors, pulled toward the numbers that were
there, so that ten runs move what they show and leave the rest.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ConfigError
from headrace.plan.closed_loop import VLLM, Cycle, Overheads
from headrace.plan.runs import Run

Matrix = npt.NDArray[np.float64]

# Toward the numbers before, beside a weight of 1 for all runs. Kernels are much the same everywhere: what differs is
# sooner the host's doing, so the first number of each fit, by which kernels are slower, is held.
_PULL = 0.0003
_HELD = 0.3
_LEAST_ERROR = 0.02  # relative; smaller ones weigh no more
_ROUNDS = 30
_SWEEPS = 60
_TURNS = 8  # of fitting tokens and first tokens, each with what the other says


def calibrate(runs: Sequence[Run], start: Overheads = VLLM) -> Overheads:
    """Numbers fitted to the runs whose clients the cache holds. ConfigError where there is none."""
    inside = [run for run in runs if not run.past_capacity]
    if not inside:
        raise ConfigError("there is no run to calibrate with whose clients the cache holds at once")
    fitted = start
    for _ in range(_TURNS):
        fitted = _to_first_tokens(inside, _to_tokens(inside, fitted, start), start)
    return fitted


def _to_tokens(runs: Sequence[Run], now: Overheads, start: Overheads) -> Overheads:
    """What a decode step takes, from the times per token less what others' prompts add."""
    rows = np.array([[r.terms.decode, 1.0, r.load.clients] for r in runs])
    measured = np.array([r.measured.tpot for r in runs])
    known = np.array([Cycle.of(r.terms, r.load, now).left / max(r.load.answer - 1, 1) for r in runs])
    numbers = _fit(rows, measured, known, np.array([start.kernels, start.step, start.request]))
    return replace(now, **dict(zip(("kernels", "step", "request"), numbers, strict=True)))


def _to_first_tokens(runs: Sequence[Run], now: Overheads, start: Overheads) -> Overheads:
    """What comes before a first token, less the others' prompts that it meets by chance."""
    cycles = [Cycle.of(r.terms, r.load, replace(now, together=0.0)) for r in runs]
    others = [r.load.clients - 1 for r in runs]
    rows = np.array(
        [
            [r.terms.prompt, c.decode, n * c.keeps, min(n, 1) * c.keeps]
            for r, c, n in zip(runs, cycles, others, strict=True)
        ]
    )
    measured, known = np.array([r.measured.ttft for r in runs]), np.array([c.met for c in cycles])
    numbers = _fit(rows, measured, known, np.array([start.prompt, start.wait, start.burst, start.together]))
    return replace(now, **dict(zip(("prompt", "wait", "burst", "together"), numbers, strict=True)))


def _fit(rows: Matrix, measured: Matrix, known: Matrix, before: Matrix) -> list[float]:
    """Numbers >= 0, one for each column, that with what is known make what was measured: descent of reweighted least
    squares, one coordinate after the other."""
    columns, rest = rows * before / measured[:, None], 1 - known / measured
    share = np.ones(len(before))  # of each number before
    pull = np.array([_HELD] + [_PULL] * (len(before) - 1)) / len(before)
    for _ in range(_ROUNDS):
        weight = 1 / np.maximum(np.abs(columns @ share - rest), _LEAST_ERROR)
        weight /= weight.sum()
        gram = (columns.T * weight) @ columns + np.diag(pull)
        wanted = (columns.T * weight) @ rest + pull
        for _ in range(_SWEEPS):
            for i in range(len(share)):
                share[i] = max(0.0, share[i] + (wanted[i] - gram[i] @ share) / gram[i, i])
    return [float(x) for x in share * before]

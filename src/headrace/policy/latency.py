"""How long a step will take: what a Batch asks of a device as a few numbers (StepWork), and LatencyModel, which starts
from a prior and learns from the steps that were measured. The scheduler's time budget, preemption, admission, the
router and the simulator ask the same model. It reads no clock: seconds are given to it.

The fit is non-negative least squares of relative errors with forgetting. Steps of decodes alone and steps with chunks
are forgotten separately, so that an hour of decodes does not make the model forget what a prompt costs. A stalled step
weighs little: errors are relative to the time that was taken, and large ones are weighed down besides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.batch import Batch

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepWork:
    """tokens: positions computed. requests: entries. decode_context: KV positions read by entries of one token.
    prefill_pairs: pairs of query and key of the longer entries. logit_rows: distributions computed, of which
    sampled_rows draw a token."""

    tokens: int
    requests: int
    decode_context: int = 0
    prefill_pairs: float = 0.0
    logit_rows: int = 0
    sampled_rows: int = 0

    @classmethod
    def of(cls, batch: Batch) -> StepWork:
        starts, counts = batch.starts, batch.counts
        tokens, requests, rows = int(counts.sum()), len(counts), len(batch.logit_entry)
        context = int(starts.sum(dtype=np.int64)) + requests
        if tokens == requests:
            return cls(tokens, requests, context, 0.0, rows, int(np.count_nonzero(batch.logit_sample)))
        long = counts > 1
        start, count = starts[long].astype(np.float64), counts[long].astype(np.float64)
        return cls(
            tokens,
            requests,
            context - int(start.sum()) - len(start),
            float((count * (start + count / 2)).sum()),
            rows,
            int(np.count_nonzero(batch.logit_sample)),
        )


Prior = Callable[[StepWork], float]


@dataclass(frozen=True, slots=True)
class LinearPrior:
    """Seconds of a step as a sum of so much for each thing done. The defaults are those of a small model on a
    laptop's processor, right to a factor of ten; a few measured steps replace them."""

    step: float = 4e-3
    token: float = 1.5e-3
    request: float = 1e-5
    context: float = 1e-6
    pair: float = 3e-7
    row: float = 2e-4

    def __call__(self, work: StepWork) -> float:
        return (
            self.step
            + self.token * work.tokens
            + self.request * work.requests
            + self.context * work.decode_context
            + self.pair * work.prefill_pairs
            + self.row * work.logit_rows
        )


_FEATURES = 7
# Steps of its kind after which a step counts half: without longer entries, with them.
_HALF_LIVES = (256, 64)
# Steps after which a prediction is preceded by a fit. Though nobody asks, one is made at the latest after _FIT_LATEST
# steps, or when half of all steps are new; the first _WARM steps are fitted at once.
_FIT_EVERY = 32
_FIT_LATEST = 256
_WARM = 8
# Relative error up to which a step has its full weight.
_TRUSTED = 0.25
# Pull toward the last fit, beside a weight of 1 for all steps seen: decides what they leave open.
_PULL = 1e-3
_SWEEPS = 24
_SHORTEST = 1e-9
_REMEMBERED_ERRORS = 128


class LatencyModel:
    """seconds = sum of coefficients >= 0 times (the prior's seconds, 1, tokens, requests, decode context, prefill
    pairs, logit rows). Starts as the prior alone."""

    def __init__(self, prior: Prior | None = None) -> None:
        self._prior: Prior = prior or LinearPrior()
        self._coefficients = [1.0, *[0.0] * (_FEATURES - 1)]
        # Normal equations of each kind of step: without longer entries, with them.
        self._gram: list[Matrix] = [np.zeros((_FEATURES, _FEATURES)) for _ in range(2)]
        self._target: list[Matrix] = [np.zeros(_FEATURES) for _ in range(2)]
        self._waiting: tuple[list[list[float]], list[list[float]]] = ([], [])
        self._errors: deque[float] = deque(maxlen=_REMEMBERED_ERRORS)
        self._observed = self._unfitted = 0

    @property
    def observed(self) -> int:
        """Steps learnt from."""
        return self._observed

    @property
    def error(self) -> float | None:
        """Median of |predicted - taken| / taken over the last steps, each predicted before it was learnt from. None
        before the first step."""
        return float(np.median(self._errors)) if self._errors else None

    def predict(self, work: StepWork) -> float:
        """Seconds that a step of this work will take, above 0."""
        if self._unfitted >= _FIT_EVERY:
            self._fit()
        return self._sum(self._features(work))

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that a step of this work took so long. Raises ValueError unless seconds is finite and not negative."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds must be finite and at least 0, got {seconds}")
        seconds = max(seconds, _SHORTEST)
        features = self._features(work)
        predicted = self._sum(features)
        relative = abs(predicted - seconds) / seconds
        self._errors.append(relative)
        # Relative to the longer of both, so that neither a stall nor a step that took next to nothing rules the fit.
        scale = max(seconds, predicted)
        off = abs(predicted - seconds) / scale
        weight = 1.0 if off <= _TRUSTED or self._observed < _WARM else (_TRUSTED / off) ** 2
        scale /= weight**0.5
        waiting = self._waiting[work.tokens > work.requests]
        waiting.append([*(value / scale for value in features), seconds / scale])
        self._observed += 1
        self._unfitted += 1
        if self._observed <= _WARM or self._unfitted >= min(self._observed // 2, _FIT_LATEST):
            self._fit()

    def _features(self, work: StepWork) -> tuple[float, ...]:
        return (
            self._prior(work),
            1.0,
            work.tokens,
            work.requests,
            work.decode_context,
            work.prefill_pairs,
            work.logit_rows,
        )

    def _sum(self, features: tuple[float, ...]) -> float:
        total = sum(c * value for c, value in zip(self._coefficients, features, strict=True))
        return max(total, _SHORTEST)

    def _fit(self) -> None:
        """Take in the steps that wait, and descend one coefficient after the other from the last fit."""
        self._unfitted = 0
        for kind, waiting in enumerate(self._waiting):
            if not waiting:
                continue
            rows = np.array(waiting)
            waiting.clear()
            keep = 0.5 ** (np.arange(len(rows) - 1, -1, -1) / _HALF_LIVES[kind])
            older = 0.5 ** (len(rows) / _HALF_LIVES[kind])
            features, taken = rows[:, :-1] * keep[:, None], rows[:, -1]
            self._gram[kind] = self._gram[kind] * older + features.T @ rows[:, :-1]
            self._target[kind] = self._target[kind] * older + features.T @ taken
        gram, target = self._gram[0] + self._gram[1], self._target[0] + self._target[1]
        scale = np.sqrt(np.diag(gram))
        scale[scale == 0] = 1.0
        matrix: list[list[float]] = (gram / np.outer(scale, scale)).tolist()
        scaled = [c * s for c, s in zip(self._coefficients, scale.tolist(), strict=True)]
        wanted: list[float] = (target / scale).tolist()
        last = list(scaled)
        for _ in range(_SWEEPS):
            for i, row in enumerate(matrix):
                if row[i] == 0:
                    continue
                rest = sum(a * b for a, b in zip(row, scaled, strict=True)) - row[i] * scaled[i]
                scaled[i] = max(0.0, (wanted[i] + _PULL * last[i] - rest) / (row[i] + _PULL))
        self._coefficients = [value / s for value, s in zip(scaled, scale.tolist(), strict=True)]

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

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from headrace.core.batch import Batch

Matrix = npt.NDArray[np.float64]


class StepWork(msgspec.Struct, frozen=True, gc=False):
    """tokens: positions computed. requests: entries. decode_context: KV positions read by entries of one token.
    prefill_pairs: pairs of query and key of the longer entries. logit_rows: distributions computed, of which
    sampled_rows draw a token. longer: how many entries have more than one token; 0 where nobody counted them."""

    tokens: int
    requests: int
    decode_context: int = 0
    prefill_pairs: float = 0.0
    logit_rows: int = 0
    sampled_rows: int = 0
    longer: int = 0

    @property
    def long_entries(self) -> int:
        """Entries of more than one token. Where nobody counted: one, or all if no entry of one token reads anything."""
        if not self.prefill_pairs:
            return 0
        return self.longer or (1 if self.decode_context else self.requests)

    @classmethod
    def of(cls, batch: Batch) -> StepWork:
        rows, sampled = len(batch.logit_entry), batch.logit_sample.tobytes().count(1)
        return cls.of_entries(batch.starts.tolist(), batch.counts.tolist(), rows, sampled)

    @classmethod
    def of_entries(cls, starts: list[int], counts: list[int], rows: int, sampled: int) -> StepWork:
        """Of entries with these first positions and tokens, and logit rows of which so many draw a token."""
        tokens, requests = sum(counts), len(counts)
        context, pairs, longer = sum(starts) + requests, 0.0, 0
        if tokens > requests:
            for start, count in zip(starts, counts, strict=True):
                if count > 1:
                    context -= start + 1
                    pairs += count * (start + count / 2)
                    longer += 1
        return cls(tokens, requests, context, pairs, rows, sampled, longer)

    def shared(self, parts: int) -> StepWork:
        """The largest of so many equal parts."""
        return StepWork(
            -(-self.tokens // parts),
            -(-self.requests // parts),
            -(-self.decode_context // parts),
            self.prefill_pairs / parts,
            -(-self.logit_rows // parts),
            -(-self.sampled_rows // parts),
            -(-self.longer // parts),
        )

    def later(self, steps: int) -> StepWork:
        """The work of the same decodes so many steps later."""
        return structs.replace(self, decode_context=self.decode_context + steps * self.requests)


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
# Noted steps that a prediction learns from first. Though nobody asks, they are learnt from at the latest when they are
# so many, or half of all steps; the first _WARM steps at once.
_LEARN_EVERY = 32
_LEARN_LATEST = 256
_WARM = 8
# Relative error up to which a step has its full weight.
_TRUSTED = 0.25
# Pull toward the last fit, beside a weight of 1 for all steps seen: decides what they leave open.
_PULL = 1e-3
_SWEEPS = 24
_SHORTEST = 1e-9
_FOREVER = float("inf")
_REMEMBERED_ERRORS = 128


class LatencyModel:
    """seconds = sum of coefficients >= 0 times (the prior's seconds, 1, tokens, requests, decode context, prefill
    pairs, logit rows). Starts as the prior alone. What is observed is only noted until it is needed. learning: False
    where the prior is known to be right."""

    def __init__(self, prior: Prior | None = None, *, learning: bool = True) -> None:
        self._prior: Prior = prior or LinearPrior()
        self.learning = learning
        self._coefficients: Matrix = np.array([1.0, *[0.0] * (_FEATURES - 1)])
        # Normal equations of each kind of step: without longer entries, with them.
        self._gram: list[Matrix] = [np.zeros((_FEATURES, _FEATURES)) for _ in range(2)]
        self._target: list[Matrix] = [np.zeros(_FEATURES) for _ in range(2)]
        self._noted: list[tuple[StepWork, float]] = []
        self._errors: deque[float] = deque(maxlen=_REMEMBERED_ERRORS)
        self._observed = 0

    @property
    def error(self) -> float | None:
        """Median of |predicted - taken| / taken over the last steps that were learnt from, each predicted before. None
        before the first step. Asking does not make it learn: whoever reads figures must not hold up a step."""
        return float(np.median(self._errors)) if self._errors else None

    def predict(self, work: StepWork) -> float:
        """Seconds that a step of this work will take, above 0."""
        if not self.learning:
            return max(self._prior(work), _SHORTEST)
        if len(self._noted) >= _LEARN_EVERY:
            self._learn()
        return max(float(np.dot(self._coefficients, self._features(work))), _SHORTEST)

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that a step of this work took so long. Raises ValueError unless seconds is finite and not negative."""
        if not 0 <= seconds < _FOREVER:
            raise ValueError(f"seconds must be finite and at least 0, got {seconds}")
        if not self.learning:
            return
        self._noted.append((work, seconds))
        self._observed += 1
        if len(self._noted) >= _LEARN_LATEST or self._observed <= _WARM or len(self._noted) * 2 > self._observed:
            self._learn()

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

    def _learn(self) -> None:
        """Take in the steps that were noted, and fit anew."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        features = np.array([self._features(work) for work, _ in noted])
        taken = np.maximum(np.array([seconds for _, seconds in noted]), _SHORTEST)
        longer = np.array([work.tokens > work.requests for work, _ in noted])
        predicted = np.maximum(features @ self._coefficients, _SHORTEST)
        self._errors.extend((np.abs(predicted - taken) / taken).tolist())
        # Relative to the longer of both, so that neither a stall nor a step that took next to nothing rules the fit.
        scale = np.maximum(taken, predicted)
        if self._observed > _WARM:
            off = np.abs(predicted - taken) / scale
            scale *= np.maximum(off / _TRUSTED, 1.0)
        features, target = features / scale[:, None], taken / scale
        for kind, half_life in enumerate(_HALF_LIVES):
            of_kind = np.flatnonzero(longer == bool(kind))
            count = len(of_kind)
            if not count:
                continue
            keep = 0.5 ** (np.arange(count - 1, -1, -1) / half_life)
            mine = features[of_kind]
            weighted = mine.T * keep
            older = 0.5 ** (count / half_life)
            self._gram[kind] = self._gram[kind] * older + weighted @ mine
            self._target[kind] = self._target[kind] * older + weighted @ target[of_kind]
        self._fit()

    def _fit(self) -> None:
        """Descend one coefficient after the other from the last fit."""
        gram, target = self._gram[0] + self._gram[1], self._target[0] + self._target[1]
        scale = np.sqrt(np.diag(gram))
        scale[scale == 0] = 1.0
        matrix: list[list[float]] = (gram / np.outer(scale, scale)).tolist()
        scaled: list[float] = (self._coefficients * scale).tolist()
        wanted: list[float] = (target / scale).tolist()
        last = list(scaled)
        for _ in range(_SWEEPS):
            for i, row in enumerate(matrix):
                if row[i] == 0:
                    continue
                rest = sum(a * b for a, b in zip(row, scaled, strict=True)) - row[i] * scaled[i]
                scaled[i] = max(0.0, (wanted[i] + _PULL * last[i] - rest) / (row[i] + _PULL))
        self._coefficients = np.array(scaled) / scale

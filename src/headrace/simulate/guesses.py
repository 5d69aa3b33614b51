"""Guessing ahead in virtual time: a drafter that is right as often as it is said to be. Whether a token can be guessed
is drawn once for its request and position, so that it does not depend on the batch, on how many are guessed, or on
where the request runs. What a draft model takes is added to the step that it guesses for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.batch import BoolArray, IntArray
from headrace.policy.draft_model import check_guessing
from headrace.policy.latency import Prior, StepWork
from headrace.policy.speculation import Context, Proposal
from headrace.simulate.executor import ANSWER_TOKEN

_WRONG_TOKEN = ANSWER_TOKEN - 1
_KEYS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Guessing:
    """tokens: guessed for a request in a step at most; accepted: odds that one is right which follows right ones. pace:
    seconds of a step of the model that guesses, None where guessing takes no time."""

    tokens: int
    accepted: float
    pace: Prior | None = None

    def __post_init__(self) -> None:
        check_guessing(self.tokens, self.accepted)


class Guesser:
    """A Drafter for requests whose seed is their number in the workload."""

    copy = None

    def __init__(self, guessing: Guessing, seed: int) -> None:
        self.costly = guessing.pace is not None
        self._guessing = guessing
        self._seed = seed
        self._odds = np.cumprod(np.full(guessing.tokens, guessing.accepted)).tolist()
        # Of each slot: whose text the draft model has read, and how far.
        self._read: dict[int, tuple[int, int]] = {}
        self._owed = 0.0

    def propose(self, contexts: Sequence[Context]) -> list[Proposal]:
        if self._guessing.pace is not None:
            self._owed += self._seconds(contexts, self._guessing.pace)
        tokens = np.where(self._right(contexts), ANSWER_TOKEN, _WRONG_TOKEN).tolist()
        return [Proposal(row[: c.most], self._odds[: c.most]) for row, c in zip(tokens, contexts, strict=True)]

    def remember(self, namespace: tuple[str, str], tokens: IntArray, prompt_len: int) -> None:
        """Nothing: it does not learn."""

    def take_seconds(self) -> float:
        """Of guessing since the last call."""
        owed, self._owed = self._owed, 0.0
        return owed

    def _right(self, contexts: Sequence[Context]) -> BoolArray:
        """Whether each token that comes next can be guessed: bool [contexts, tokens]."""
        request = np.array([c.seed for c in contexts], np.uint64)
        known = np.array([len(c.tokens) for c in contexts])
        at = (known[:, None] + np.arange(self._guessing.tokens)).astype(np.uint64)
        drawn = _uniform(self._seed, np.broadcast_to(request[:, None], at.shape), at)
        return np.asarray(drawn < self._guessing.accepted, np.bool_)

    def _seconds(self, contexts: Sequence[Context], pace: Prior) -> float:
        """Of reading what is new of each text, and of a step for each token ahead."""
        first, ahead = self._reading(contexts), max(c.most for c in contexts)
        seconds = pace(first)
        for further in range(1, ahead):
            going = [len(c.tokens) + further for c in contexts if c.most > further]
            seconds += pace(StepWork(len(going), len(going), sum(going), 0.0, len(going), len(going)))
        return seconds

    def _reading(self, contexts: Sequence[Context]) -> StepWork:
        tokens = context = longer = 0
        pairs = 0.0
        for c in contexts:
            serial, read = self._read.get(c.slot, (-1, 0))
            length = len(c.tokens)
            # What it guessed last is read too, as far as it was right; the last token brings the next.
            new = length - min(read, length - 1) if serial == c.serial else length
            self._read[c.slot] = c.serial, length + c.most - 1
            tokens += new
            if new == 1:
                context += length
            else:
                pairs += new * (length - new / 2)
                longer += 1
        count = len(contexts)
        return StepWork(tokens, count, context, pairs, count, count, longer)


def _uniform(seed: int, request: npt.NDArray[np.uint64], at: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """From 0 to below 1 for each pair of request and position: SplitMix64 (Steele et al. 2014)."""
    one, two, three = (np.uint64(key) for key in _KEYS)
    with np.errstate(over="ignore"):
        mixed: npt.NDArray[np.uint64] = np.uint64(seed % 2**64) * one + request * two + at * three
        mixed = (mixed ^ (mixed >> np.uint64(30))) * two
        mixed = (mixed ^ (mixed >> np.uint64(27))) * three
    mixed = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)
    return mixed.astype(np.float64) * 2.0**-53

"""Pace: seconds of a step as a server sees them: the devices by a roofline, and the host beside them. The simulator's
clock. Decode steps are read off straight lines between points of the roofline, so that a run of them costs a vector
operation, and the sum of a run is, to the last bit, the sum of its steps.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.policy.latency import Prior, StepWork

_SPACING = 2048
"""Tokens of context of each request between two points, the first of which is the least, a token for each. Without
windows, the roofline is a straight line anyway."""


@dataclass(frozen=True, slots=True)
class Host:
    """kernels: times by which steps take longer than the roofline says. step: seconds of the host in each step,
    request: more for each sequence."""

    kernels: float = 1.0
    step: float = 0.0
    request: float = 0.0


VLLM_HOST = Host(kernels=0.98, step=2.4e-3, request=45e-6)
"""vLLM's, fitted to measured runs (plan/closed_loop.py)."""


class Pace:
    """A Prior. prior: seconds on the devices alone."""

    def __init__(self, prior: Prior, host: Host) -> None:
        self._prior = prior
        self._host = host
        # By (requests, point): seconds there, and more for each token of context.
        self._lines: dict[tuple[int, int], tuple[float, float]] = {}

    def __call__(self, work: StepWork) -> float:
        if not _decodes(work):
            return self._seconds(work)
        point, beyond = divmod(work.decode_context - work.requests, _SPACING * work.requests)
        start, slope = self._line(work.requests, point)
        return start + slope * beyond

    def run(self, work: StepWork, steps: int) -> npt.NDArray[np.float64]:
        """Seconds of each of so many steps, of which the first is `work` and the others follow it (StepWork.later)."""
        if not _decodes(work):
            return np.array([self(work.later(i)) for i in range(steps)])
        requests = work.requests
        point, beyond = divmod(work.decode_context + requests * np.arange(-1, steps - 1), _SPACING * requests)
        seconds = np.empty(steps)
        first, last = int(point[0]), int(point[-1])
        for one in range(first, last + 1):
            start, slope = self._line(requests, one)
            here = slice(*point.searchsorted((one, one + 1))) if first < last else slice(None)
            seconds[here] = start + slope * beyond[here]
        return seconds

    def _line(self, requests: int, point: int) -> tuple[float, float]:
        line = self._lines.get((requests, point))
        if line is None:
            width = _SPACING * requests
            start, end = (
                self._seconds(StepWork(requests, requests, requests + at * width, 0.0, requests, requests))
                for at in (point, point + 1)
            )
            line = self._lines[requests, point] = start, (end - start) / width
        return line

    def _seconds(self, work: StepWork) -> float:
        host = self._host
        return host.kernels * self._prior(work) + host.step + host.request * work.requests


def _decodes(work: StepWork) -> bool:
    """Whether every request samples one token and nothing else is computed."""
    return work.tokens == work.requests == work.logit_rows and not work.prefill_pairs

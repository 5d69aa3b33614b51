"""When each token of each request came. watch() turns an engine's deltas into one Timeline per request; every figure
of `headrace bench` is read from these. Times are seconds of the clock that was given.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.core.errors import EngineError
from headrace.core.request import FinishReason, OutputDelta, Request

Clock = Callable[[], float]
Steps = Iterable[list[OutputDelta]]
Drive = Callable[[list[Request]], Steps]
"""Runs requests to their end, handing over each step's deltas as soon as the step is done."""


@dataclass(slots=True)
class Timeline:
    """begun: when the request was handed over; tokens: the time of each generated token."""

    prompt_tokens: int
    begun: float
    tokens: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        return self.tokens[0]

    @property
    def last(self) -> float:
        return self.tokens[-1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


def watch(drive: Drive, requests: list[Request], clock: Clock) -> list[Timeline]:
    """Run all requests at once; timelines in their order. Raises EngineError if one of them fails."""
    begun = clock()
    lines = {r.request_id: Timeline(len(r.prompt_ids), begun) for r in requests}
    for deltas in drive(requests):
        now = clock()
        for delta in deltas:
            if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                raise EngineError(f"request {delta.request_id} failed: {delta.error or delta.finish_reason}")
            lines[delta.request_id].tokens += [now] * len(delta.token_ids)
    return list(lines.values())

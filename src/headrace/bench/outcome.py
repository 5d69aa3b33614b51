"""What a load met with, request by request, and the report on all of them: rates, time to first token, per token and
between chunks, the longest stall, and how much of it was within bounds. Times are seconds; reports are in ms.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.latency import percentile


@dataclass(slots=True)
class Outcome:
    """chunks: when each piece of text came. late: how long
    after its time the client came to it."""

    begun: float
    ended: float = 0.0
    chunks: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    late: float = 0.0

    @property
    def ttft(self) -> float:
        return self.chunks[0] - self.begun

    @property
    def tpot(self) -> float:
        """Per token after the first."""
        return (self.chunks[-1] - self.chunks[0]) / max(1, self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.chunks, self.chunks[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What counts as good: a first token and tokens after it within so many ms; None for any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def met(self, outcome: Outcome) -> bool:
        return all(
            bound is None or 1e3 * taken <= bound
            for taken, bound in ((outcome.ttft, self.ttft_ms), (outcome.tpot, self.tpot_ms))
        )


def report(outcomes: Sequence[Outcome], seconds: float, bounds: Bounds, percents: Sequence[int]) -> dict[str, Any]:
    """seconds: from the first request sent to the last answer's end."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    tokens = sum(outcome.output_tokens for outcome in good)
    prompts = sum(outcome.prompt_tokens for outcome in good)
    gaps = [gap for outcome in good for gap in outcome.gaps]
    within = sum(bounds.met(outcome) for outcome in good)

    def spread(values: list[float]) -> dict[str, float] | None:
        if not values:
            return None
        ordered = sorted(values)
        at = {f"p{percent}": 1e3 * percentile(ordered, percent) for percent in percents}
        return {"mean": 1e3 * math.fsum(ordered) / len(ordered), **at}

    return {
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None)),
        "duration_s": seconds,
        "input_tokens": prompts,
        "output_tokens": tokens,
        "requests_per_s": len(good) / seconds,
        "output_tokens_per_s": tokens / seconds,
        "total_tokens_per_s": (prompts + tokens) / seconds,
        "goodput_per_s": within / seconds,
        "goodput_share": within / len(outcomes),
        "ttft_ms": spread([outcome.ttft for outcome in good]),
        "tpot_ms": spread([outcome.tpot for outcome in good if outcome.output_tokens > 1]),
        "itl_ms": spread(gaps),
        "e2e_ms": spread([outcome.ended - outcome.begun for outcome in good]),
        "max_stall_ms": 1e3 * max(gaps, default=0.0),
        "max_concurrency": most_at_once(outcomes),
        "client_late_ms": spread([outcome.late for outcome in outcomes]),
    }


def most_at_once(outcomes: Sequence[Outcome]) -> int:
    edges = sorted([(o.begun, 1) for o in outcomes] + [(o.ended, -1) for o in outcomes])
    most = now = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most

"""What only the API sees of requests, latencies and how they ended, observed as it happens. How it is told, with what
the engine published last, is server/exposition.py.
"""

from collections.abc import Iterator

from headrace.core.request import FinishReason
from headrace.policy.histogram import HistogramCounts
from headrace.server.counts import Counts, Histogram

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
E2E_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


HISTOGRAMS = (
    ("time_to_first_token_seconds", "Time from arrival to the first token.", TTFT_BUCKETS),
    ("inter_token_latency_seconds", "Time between tokens of one request.", ITL_BUCKETS),
    ("request_time_per_output_token_seconds", "Mean time of a request's tokens after its first.", ITL_BUCKETS),
    ("e2e_request_latency_seconds", "Time from arrival to the last token.", E2E_BUCKETS),
    ("request_prompt_tokens", "Prompt tokens of a request.", TOKEN_BUCKETS),
    ("request_generation_tokens", "Tokens generated for a request.", TOKEN_BUCKETS),
)
_REASONS = tuple(FinishReason)
COUNTS_WIDTH = len(_REASONS) + sum(Histogram.width(bounds) for _, _, bounds in HISTOGRAMS)


class Metrics:
    """What API processes count, this one in its row of counts. Times are in seconds."""

    def __init__(self, model_name: str, counts: Counts | None = None) -> None:
        self.model_name = model_name
        self._counts = Counts(COUNTS_WIDTH) if counts is None else counts
        self._histograms: list[Histogram] = []
        start = len(_REASONS)
        for _, _, bounds in HISTOGRAMS:
            self._histograms.append(Histogram(self._counts, start, bounds))
            start += Histogram.width(bounds)
        observers = [histogram.observe for histogram in self._histograms]
        self.first_token, self.next_token, self.per_token, *others = observers
        self._last_token, self._prompt, self._generation = others

    def ended(self, reason: FinishReason, seconds: float, prompt_tokens: int, generated_tokens: int) -> None:
        """One sequence ended; aborted ones count as such and leave the latency histogram alone."""
        self._counts.own[_REASONS.index(reason)] += 1.0
        self._prompt(prompt_tokens)
        self._generation(generated_tokens)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._last_token(seconds)

    def ends(self) -> Iterator[tuple[FinishReason, float]]:
        """How many requests ended in each way, in all API processes."""
        for index, reason in enumerate(_REASONS):
            yield reason, self._counts.total(index)

    def histograms(self) -> Iterator[tuple[str, str, HistogramCounts]]:
        """Name, help and counts of each, of all API processes."""
        for (name, text, _), histogram in zip(HISTOGRAMS, self._histograms, strict=True):
            yield name, text, histogram.read()

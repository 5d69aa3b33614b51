"""How well a model predicts a text: exp of the mean negative log-probability of each token given those before it in
its window. The text is tokenized once, whole, without special tokens; windows do not overlap, and a window's first
token is not predicted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.bench.timeline import Drive
from headrace.core.errors import ConfigError, EngineError
from headrace.core.request import FinishReason, Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Perplexity:
    """tokens: predictions made, window - 1 in each window."""

    perplexity: float
    tokens: int


def cut_windows(ids: list[int], window: int, windows: int) -> list[list[int]]:
    """The first `windows` full windows. Raises ConfigError if the text holds none."""
    if window < 2 or windows < 1:
        raise ConfigError(f"window must be at least 2 and windows at least 1, got {window} and {windows}")
    if len(ids) < window:
        raise ConfigError(f"the text has {len(ids)} tokens, fewer than one window of {window}", field="window")
    count = min(windows, len(ids) // window)
    return [ids[i * window : (i + 1) * window] for i in range(count)]


def measure_perplexity(drive: Drive, windows: list[list[int]], progress: Callable[[int], object]) -> Perplexity:
    """Score every window; progress is called with the number of tokens newly scored. Raises EngineError."""
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    requests = [Request(f"window-{i}", ids, params, max_tokens=0, seed=0) for i, ids in enumerate(windows)]
    logprobs: dict[str, list[float]] = {r.request_id: [] for r in requests}
    for deltas in drive(requests):
        scored = 0
        for delta in deltas:
            if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                raise EngineError(f"{delta.request_id} failed: {delta.error or delta.finish_reason}")
            pieces = [t.logprob for t in delta.prompt_logprobs or ()]
            logprobs[delta.request_id] += pieces
            scored += len(pieces)
        progress(scored)
    expected, found = sum(len(ids) - 1 for ids in windows), sum(map(len, logprobs.values()))
    if found != expected:
        raise EngineError(f"{found} of {expected} tokens were scored")
    # Summed window by window, so that the order in which windows finish changes nothing.
    total = math.fsum(math.fsum(values) for values in logprobs.values())
    return Perplexity(math.exp(-total / expected), expected)

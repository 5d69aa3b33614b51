"""How long one user waits: for the first token, and between tokens."""

import math
import statistics
from dataclasses import dataclass

from headrace.bench.timeline import Clock, Drive, watch
from headrace.bench.workload import Shape, random_requests, warm_up_request


@dataclass(frozen=True, slots=True)
class Latency:
    """ttft_ms: to the first token. tpot_ms: per token after it. Both are means over requests. itl_ms: percentiles of
    all gaps between tokens; max_stall_ms: the longest of them. prefill: prompt tokens until every request has its
    first token; decode: the tokens after that."""

    ttft_ms: float
    tpot_ms: float
    itl_ms: dict[str, float]
    max_stall_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


def measure_latency(drive: Drive, shape: Shape, vocab_size: int, clock: Clock) -> Latency:
    """Run the shape once, all requests begun together, after one warm-up request that does not count."""
    watch(drive, warm_up_request(shape, vocab_size), clock)
    lines = watch(drive, random_requests(shape, vocab_size), clock)
    begun, all_first = lines[0].begun, max(line.first for line in lines)
    gaps = sorted(gap for line in lines for gap in line.gaps) or [0.0]
    decoded = sum(1 for line in lines for time in line.tokens if time > all_first)
    decode_s = max(line.last for line in lines) - all_first
    return Latency(
        ttft_ms=1e3 * statistics.fmean(line.first - line.begun for line in lines),
        tpot_ms=1e3 * statistics.fmean((line.last - line.first) / max(1, len(line.gaps)) for line in lines),
        itl_ms={"p50": 1e3 * percentile(gaps, 50), "p99": 1e3 * percentile(gaps, 99)},
        max_stall_ms=1e3 * gaps[-1],
        prefill_tokens_per_s=sum(line.prompt_tokens for line in lines) / (all_first - begun),
        decode_tokens_per_s=decoded / decode_s if decode_s > 0 else 0.0,
    )


def percentile(ordered: list[float], percent: int) -> float:
    """The nearest-rank percentile of values in rising order."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]

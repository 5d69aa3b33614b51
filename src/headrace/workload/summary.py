"""What a workload is like: how many requests at what rate, how bursty, how long, and what share of its prompts a cache
without end would find. One that follows another counts as if answers took no time.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import pstdev
from typing import Any

from headrace.workload.demand import ANSWER, Demand, Part


def summarize(demands: Sequence[Demand]) -> dict[str, Any]:
    """Keys carry their unit. burstiness_cv: coefficient of variation of the gaps, 1 for Poisson. peak_rate_per_s: of
    the fullest of 100 equal spans. Rates are None if all come at once."""
    times = times_of(demands)
    duration = times[-1] - times[0]
    gaps = [b - a for a, b in pairwise(times)]
    mean = duration / len(gaps) if gaps else 0.0
    spans = Counter(min(99, int(100 * ((at - times[0]) / duration))) for at in times) if duration else Counter()
    tenants = {one.tenant for one in demands}
    return {
        "requests": len(demands),
        "follow_up_requests": sum(one.follows is not None for one in demands),
        "duration_s": duration,
        "rate_per_s": 1 / mean if mean else None,
        "peak_rate_per_s": 100 * max(spans.values()) / duration if duration else None,
        "burstiness_cv": pstdev(gaps, mean) / mean if mean else None,
        "input_len": _lengths([one.input_len for one in demands]),
        "output_len": _lengths([one.output_len for one in demands]),
        "tenants": len(tenants),
        "shared_prefix_share": shared_prefix_share(demands),
    }


def times_of(demands: Sequence[Demand]) -> list[float]:
    """When requests come if answers take no time, in order."""
    times: list[float] = []
    for one in demands:
        times.append(one.at if one.follows is None else times[one.follows] + one.at)
    return sorted(times)


def _lengths(values: list[int]) -> dict[str, float]:
    ordered = sorted(values)
    ranks = {f"p{percent}": ordered[math.ceil(percent / 100 * len(ordered)) - 1] for percent in (50, 90, 99)}
    return {"mean": sum(ordered) / len(ordered), **ranks, "max": ordered[-1]}


def shared_prefix_share(demands: Sequence[Demand]) -> float:
    """Share of all prompt tokens that a cache without end would have: those with which an earlier prompt or its answer
    begins. The last of a prompt is computed in any case."""
    # A node is a prefix that ends with a part; longest: of a part after it, the most tokens that were seen.
    nodes: dict[tuple[int, int, int], int] = {}
    longest: dict[tuple[int, int], int] = {}
    hits = 0
    for place, one in enumerate(demands):
        node, matched, whole = 0, 0, True
        for name, length in (*_own_answers(one, demands), (_answer_of(place), one.output_len)):
            seen = longest.get((node, name), 0)
            if whole:
                matched += min(seen, length)
                whole = seen >= length
            longest[node, name] = max(seen, length)
            node = nodes.setdefault((node, name, length), len(nodes) + 1)
        hits += min(matched, one.input_len - 1)
    return hits / sum(one.input_len for one in demands)


def _answer_of(place: int) -> int:
    """A name for the answer to the request at this place, apart from all others of a workload."""
    return -(2**62) - place


def _own_answers(one: Demand, demands: Sequence[Demand]) -> list[Part]:
    """The prompt with every answer in it named by whose it is: the last is that of the request that it follows, the one
    before that of the request which that follows."""
    parts = list(one.prompt)
    earlier = one.follows
    for index in range(len(parts) - 1, -1, -1):
        if parts[index][0] == ANSWER and earlier is not None:
            parts[index] = (_answer_of(earlier), parts[index][1])
            earlier = demands[earlier].follows
    return parts

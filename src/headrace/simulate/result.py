"""What a simulation found, as numbers: latencies of all requests that were served, how much came from prefix caches,
and what each replica did. Times are in milliseconds, rates per second of the simulated time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ConfigError
from headrace.policy.speculation import DraftCounters
from headrace.simulate.ledger import Entry, Ledger

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep to count as good: milliseconds to its first token, and per token after it. None: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("slo_ttft_ms", self.ttft_ms), ("slo_tpot_ms", self.tpot_ms)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value:g}", field=name)

    def kept(self, ttft_ms: float, tpot_ms: float) -> bool:
        return (self.ttft_ms is None or ttft_ms <= self.ttft_ms) and (self.tpot_ms is None or tpot_ms <= self.tpot_ms)


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64] | None = None) -> Percentiles:
        """The least value that such a share of all is not above; counts[i]: how often values[i] occurs."""
        if not len(values):
            return cls(0.0, 0.0, 0.0)
        order = np.argsort(values)
        upto = np.cumsum(np.ones(len(values), np.int64) if counts is None else counts[order])
        found = (np.searchsorted(upto, share * upto[-1]) for share in (0.5, 0.9, 0.99))
        return cls(*(_rounded(float(values[order[at]])) for at in found))


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    """utilization: share of the time in which it computed."""

    requests: int
    utilization: float
    prefix_hit_rate: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """proposed, accepted: draft tokens. acceptance_length: tokens that a step brought a request it had drafts for.
    saved_s: what the accepted ones would have taken, less what drafts cost, of all replicas."""

    proposed: int
    accepted: int
    acceptance_length: float
    saved_s: float

    @classmethod
    def of(cls, counters: Iterable[DraftCounters]) -> Speculation:
        each = list(counters)
        drafts, accepted = sum(one.drafts for one in each), sum(one.accepted for one in each)
        return cls(
            sum(one.proposed for one in each),
            accepted,
            _rounded(1 + accepted / drafts if drafts else 1.0),
            _rounded(sum(one.saved_seconds for one in each)),
        )


@dataclass(frozen=True, slots=True)
class TransferSummary:
    """requests: that went from one pool to the other. saved_bytes: that were not sent, as their receivers had them.
    took_ms: from when a receiver was found to the arrival. waited_ms: from when the prompt was computed, so what a
    request waited for a receiver and for what was still on its way. links: utilization of each that was used."""

    requests: int
    sent_bytes: int
    saved_bytes: int
    took_ms: Percentiles
    waited_ms: Percentiles
    busiest_link: str
    busiest_link_utilization: float
    links: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Result:
    """requests: asked for; of these `finished` were served whole and `refused` not, by reason. duration_s: from the
    first arrival to the last token. goodput: requests a second that were finished within the SLO. prefix_hit_rate:
    share of prompt tokens that came from a cache. in_system: requests there at once, on average. replayed: requests
    that went on elsewhere because their replica was lost. speculation: None where nothing is
    guessed. wall_s: how long the simulation took."""

    requests: int
    finished: int
    refused: Mapping[str, int]
    duration_s: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    e2e_ms: Percentiles
    max_stall_ms: float
    prefix_hit_rate: float
    goodput: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    in_system: float
    utilization: float
    preemptions: int
    replayed: int
    replicas: tuple[ReplicaSummary, ...]
    wall_s: float
    speculation: Speculation | None = None
    transfer: TransferSummary | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without what the fleet does not do."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def summarize(
    ledger: Ledger, replicas: Sequence[tuple[float, int]], slo: Slo, in_system: float, duration: float, wall: float
) -> Result:
    """replicas: (seconds busy, preemptions) of each. in_system: mean over the duration."""
    entries = [ledger.entries[index] for index in sorted(ledger.entries)]
    served = [entry for entry in entries if entry.ended]
    ttft, e2e, tpot = (np.array([1e3 * part(e) for e in served]) for part in (_ttft, _e2e, _tpot))
    several = np.array([e.tokens > 1 for e in served], np.bool_)
    gaps, counts = ledger.gaps()
    good = sum(slo.kept(a, b) for a, b in zip(ttft.tolist(), tpot.tolist(), strict=True))
    input_tokens, output_tokens = sum(e.input_len for e in served), sum(e.tokens for e in served)
    per_s = 1 / duration if duration else 0.0
    by_replica: list[list[Entry]] = [[] for _ in replicas]
    for entry in served:
        for replica in {entry.replica, entry.prefilled} - {-1}:
            by_replica[replica].append(entry)
    return Result(
        requests=len(entries),
        finished=len(served),
        refused=dict(sorted(Counter(e.refused for e in entries if e.refused).items())),
        duration_s=_rounded(duration),
        ttft_ms=Percentiles.of(ttft),
        tpot_ms=Percentiles.of(tpot[several]),
        itl_ms=Percentiles.of(1e3 * gaps, counts),
        e2e_ms=Percentiles.of(e2e),
        max_stall_ms=_rounded(1e3 * float(gaps.max(initial=0.0))),
        prefix_hit_rate=_hit_rate(served),
        goodput=_rounded(good * per_s),
        requests_per_s=_rounded(len(served) * per_s),
        input_tokens_per_s=_rounded(input_tokens * per_s),
        output_tokens_per_s=_rounded(output_tokens * per_s),
        in_system=_rounded(in_system),
        utilization=_rounded(sum(busy for busy, _ in replicas) / len(replicas) * per_s),
        preemptions=sum(preemptions for _, preemptions in replicas),
        replayed=sum(entry.replays > 0 for entry in entries),
        replicas=tuple(
            ReplicaSummary(len(mine), _rounded(busy * per_s), _hit_rate(mine), preemptions)
            for mine, (busy, preemptions) in zip(by_replica, replicas, strict=True)
        ),
        wall_s=_rounded(wall),
    )


def _ttft(entry: Entry) -> float:
    return entry.first - entry.at


def _e2e(entry: Entry) -> float:
    return entry.last - entry.at


def _tpot(entry: Entry) -> float:
    return (entry.last - entry.first) / (entry.tokens - 1) if entry.tokens > 1 else 0.0


def _hit_rate(entries: Sequence[Entry]) -> float:
    tokens = sum(entry.input_len for entry in entries)
    return _rounded(sum(entry.cached for entry in entries) / tokens) if tokens else 0.0


def _rounded(value: float) -> float:
    return round(value, _DIGITS)

"""The choice among candidates by simulation: the cheapest few are rehearsed at the rates of which the analytic search
says that they keep the times; one that does not keep them is given more replicas, or dropped. What is chosen has been
rehearsed, and costs no more than any other that was, or that was not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.plan.candidate import Candidate, Pool, corrected, pooled
from headrace.plan.question import Question
from headrace.plan.rehearsal import Cell, Joined, Seen, cell_size, paired, rehearse
from headrace.plan.steady import Point

Progress = Callable[[str], None]

_TRIED = 6
"""Candidates that are rehearsed at most, one after the other."""

_TRIES, _LOWEST = 8, 0.25  # rates that a pool is tried at, and the lowest of them, as a share of the first
_SLOWER = 0.96  # of a rate that was too high, at most


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the simulation says of the chosen: at the rate of each pool's capacity, and at that of the load, in cells of
    two sizes. cut: share by which the times of the two differ. tried: candidates that were rehearsed; dropped: those
    that kept the times at no rate. pair: both pools at the load's rate, and what goes between them, where there are
    two."""

    capacity: tuple[Seen, ...]
    loaded: tuple[Seen, ...]
    smaller: tuple[Seen, ...]
    cut: float
    tried: int
    dropped: int
    pair: Joined | None = None


def chosen(
    question: Question,
    found: Sequence[Candidate],
    kept: Callable[[Candidate, Question], bool],
    progress: Progress,
) -> tuple[list[Candidate], Candidate, Evidence]:
    """Candidates in their new order, the chosen one, and what speaks for it. ConfigError where none keeps the times."""

    # Of those that differ in chunks alone, the cheapest, unless a trace's lengths make chunks matter.
    def named(one: Candidate) -> tuple[str, int]:
        return _name(one), one.pools[-1].replica.way.chunk if question.load.demands else 0

    cheapest = {named(one): one for one in reversed(found) if kept(one, question)}
    waiting = [one for one in found if cheapest.get(named(one)) is one]
    others = [one for one in found if cheapest.get(named(one)) is not one]
    passed: list[tuple[Candidate, tuple[Seen, ...]]] = []
    tried = dropped = 0
    while waiting and tried < _TRIED:
        if passed and passed[0][0].cost_per_hour <= waiting[0].cost_per_hour:
            break
        now, tried = waiting.pop(0), tried + 1
        progress(f"simulating {_name(now)}")
        seen = _rehearsed(question, now)
        if seen is None:
            dropped += 1
        else:
            passed.append(seen)
        passed.sort(key=lambda pair: pair[0].cost_per_hour)
    if not passed:
        raise ConfigError(
            f"none of {tried} ways to serve {question.name} kept the times when simulated, though the latency model "
            "says so; ask for longer times, or see the model's answer with --no-simulate",
            field="slo_ttft_ms",
        )
    best, capacity = passed[0]
    order = [*(one for one, _ in passed), *waiting, *others]
    progress(f"simulating {_name(best)} at the load, in cells of two sizes")
    return order, best, _evidence(question, best, capacity, tried, dropped)


def _rehearsed(question: Question, candidate: Candidate) -> tuple[Candidate, tuple[Seen, ...]] | None:
    """The candidate with the capacities that were seen: each pool is tried at rates that fall until its times are kept.
    None where they are at none."""
    trying = dict.fromkeys(range(len(candidate.pools)), 1.0)
    seen: dict[int, tuple[float, Seen]] = {}
    for _ in range(_TRIES):
        cells = [
            _cell(question, candidate.pools[i], candidate.replicas[i], None, share, whole=True)
            for i, share in trying.items()
        ]
        for i, told in zip(list(trying), rehearse(cells), strict=True):
            share = trying.pop(i)
            if told.keeps(question.slo):
                seen[i] = share, told
            elif (slower := share * min(_SLOWER, told.excess(question.slo) ** -0.5)) >= _LOWEST:
                trying[i] = slower
        if not trying:
            break
    if len(seen) < len(candidate.pools):
        return None
    shares, told_of = zip(*(seen[i] for i in range(len(candidate.pools))), strict=True)
    return corrected(candidate, shares, question), told_of


def _evidence(question: Question, best: Candidate, capacity: tuple[Seen, ...], tried: int, dropped: int) -> Evidence:
    points = best.at_load(question)
    wholes, halves = (
        [
            _cell(question, pool, count, point, 1.0, whole=whole)
            for pool, count, point in zip(best.pools, best.replicas, points, strict=True)
        ]
        for whole in (True, False)
    )
    pairs = [paired(wholes[0], wholes[1], best.replicas)] if best.split else []
    told = rehearse([*pairs, *wholes, *halves])
    pair = told.pop(0) if pairs else None
    loaded, smaller = told[: len(wholes)], told[len(wholes) :]
    off = [
        abs(b / a - 1)
        for large, small in zip(loaded, smaller, strict=True)
        for a, b in zip(large.tpot or large.ttft, small.tpot or small.ttft, strict=True)
        if a > 0 and large.replicas != small.replicas
    ]
    assert pair is None or isinstance(pair, Joined)
    return Evidence(capacity, tuple(loaded), tuple(smaller), max(off, default=0.0), tried, dropped, pair)


def _cell(question: Question, pool: Pool, count: int, point: Point | None, share: float, *, whole: bool) -> Cell:
    """Of a pool with so many replicas: at a share of its capacity, or at a point's rate; whole, or of half as many."""
    most = pool.lone if pooled(count) == 1 and pool.lone is not None else pool.most
    rate = share * (most if point is None else point).rate
    load, way = question.load, pool.replica.way
    times = most if point is None else point
    seconds = times.ttft[0] + load.output_len * times.tpot[0]
    size = min(cell_size(rate, seconds, way), count)
    if not whole and size > 1:
        size //= 2
    memory = pool.replica.memory
    slots = max(int(min(memory.most_running, 1.5 * most.peak + 4)), 1) if most.peak else max(memory.held, 1)
    slots = min(slots, way.chunk)
    running = rate * seconds if most.peak else 0.0
    return Cell(
        pool.replica.spec, way, load, question.slo, size, rate, seconds, running, slots, question.seed, question.drafter
    )


def _name(candidate: Candidate) -> str:
    cuts = " + ".join(
        f"tp{p.replica.way.serving.ranks}" + (f" pp{s}" if (s := p.replica.way.serving.stages) > 1 else "")
        for p in candidate.pools
    )
    way = candidate.pools[-1].replica.way
    drafts = f" {way.drafts} drafts" if way.drafts else ""
    return f"{candidate.gpu.name} {cuts} {way.serving.weights}/{way.serving.cache}{drafts}"

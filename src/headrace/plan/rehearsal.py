"""Rehearsal: a candidate's replicas serve the load in the simulator, with the real scheduler, cache and router, to see
whether the times are kept that the analytic search promised, and at what rate they are.

A fleet is cut into cells: a few replicas behind a router of their own that get their share of the requests. Replicas do
nothing for each other but share what comes, so a fleet is as good as its cells, and better by what a router gains from
more replicas to choose from. That is estimated by cells of two sizes. Cells run side by side in processes.
"""

import math
import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from random import Random

import numpy as np

from headrace.core.model_spec import ModelSpec
from headrace.plan.candidate import POOLED
from headrace.plan.question import Load, Slo
from headrace.plan.steady import Way
from headrace.policy.draft_model import DraftModel
from headrace.simulate.asking import natural_block_size
from headrace.simulate.fleet import Fleet
from headrace.simulate.pools import Pools
from headrace.simulate.simulator import Simulation
from headrace.workload.arrivals import poisson
from headrace.workload.demand import Demand

# Of the time that a request takes: before those that count, while they come, and after them until they have ended.
_WARM, _COUNTED, _AFTER = 0.15, 0.6, 1.15
_MOST, _FEWEST = 5000, 400  # requests of a cell
_MOST_GUESSED = 1500  # where tokens are guessed ahead: no steps are alike, and each is taken alone
_MOST_TOKENS = 5e6  # of a trace's requests in a cell
_RECORDED_WARM = 0.2  # share of a trace's requests, the first, that do not count
_THERE = -2  # the content of what requests had before the cell begins
_TOLERATED = 1.02  # times beyond the asked ones: what is left to chance in a percentile of so few requests


@dataclass(frozen=True, slots=True)
class Cell:
    """replicas of one way, each at so many requests a second, of which each takes about `seconds`. running: requests on
    each as it begins, in the midst of their answers, as near a full cell answers a change of its rate but slowly.
    slots: those that may run at once on one. drafter: who guesses ahead, if the way has drafts."""

    spec: ModelSpec
    way: Way
    load: Load
    slo: Slo
    replicas: int
    rate: float
    seconds: float
    running: float
    slots: int
    seed: int
    drafter: DraftModel


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds at the median and at the percentile asked for, of so many requests of a cell."""

    replicas: int
    requests: int
    rate: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    cached: float

    def keeps(self, slo: Slo) -> bool:
        return self.ttft[1] <= _TOLERATED * slo.ttft and self.tpot[1] <= _TOLERATED * slo.tpot

    def excess(self, slo: Slo) -> float:
        """Times that the worse of both is too long."""
        return max(self.ttft[1] / slo.ttft, self.tpot[1] / slo.tpot)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pools and what goes from the one to the other: cells of prefill and decode, as many of each as the fleet's
    proportion asks for, at the rate of decode's."""

    prefill: Cell
    decode: Cell


@dataclass(frozen=True, slots=True)
class Joined(Seen):
    """Of a pair. waited: seconds for keys and values after the first token, at the median and the 99th percentile;
    link: the busiest, and its utilization."""

    waited: tuple[float, float]
    link: str
    utilization: float


def cell_size(rate: float, seconds: float, way: Way) -> int:
    """Replicas of a cell: as many as have their deviations counted together, fewer where they serve very many."""
    each = rate * seconds * (_WARM + _COUNTED + _AFTER)
    return int(min(max(_most(way) / max(each, 1.0), 1), POOLED))


def paired(prefill: Cell, decode: Cell, replicas: Sequence[int]) -> Pair:
    """replicas: of the fleet's prefill and decode. Of both as many as come near to their proportion, decode's cell's at
    most."""
    share = replicas[0] / replicas[1]
    tried = [(max(round(share * d), 1), d) for d in range(1, decode.replicas + 1)]
    p, d = min(tried, key=lambda pair: (round(abs(math.log(pair[0] / pair[1] / share)), 2), -pair[1]))
    return Pair(replace(prefill, replicas=p), replace(decode, replicas=d))


def _most(way: Way) -> int:
    return _MOST_GUESSED if way.drafts else _MOST


def rehearse(cells: Sequence[Cell | Pair]) -> list[Seen]:
    """Each alone, in as many processes as there are cores, or here where threads forbid to fork. Of a pair a Joined."""
    workers = min(len(cells), len(os.sched_getaffinity(0)))
    if workers < 2 or threading.active_count() > 1:
        return [_run(cell) for cell in cells]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(_run, cells))


def _run(cell: Cell | Pair) -> Seen:
    if isinstance(cell, Pair):
        return _join(cell)
    demands, begin, end = _recorded(cell) if cell.load.demands else _drawn(cell)
    run = Simulation(demands, _fleet(cell, natural_block_size(demands)), _router(cell), cell.seed)
    return _seen(cell, run, begin, end, cell.replicas)


def _join(pair: Pair) -> Joined:
    """Both pools of a pair, whose requests are computed in the one and answered in the other, but for those that are
    there as it begins."""
    cell = replace(pair.decode, way=replace(pair.decode.way, does="both"))
    demands, begin, end = _recorded(cell) if cell.load.demands else _drawn(cell)
    size = natural_block_size(demands)
    # What has no more left than the end of a block has been there.
    least = 0 if cell.load.demands else size + 1
    pools = Pools(_fleet(pair.prefill, size), _fleet(pair.decode, size), min_tokens=least)
    run = Simulation(demands, pools, _router(cell), cell.seed)
    run.take_for_cached(((_THERE, max(one.input_len for one in demands)),))
    seen = _seen(cell, run, begin, end, pools.replicas)
    moved = run.transfer
    assert moved is not None
    waited = moved.waited_ms.p50 / 1e3, moved.waited_ms.p99 / 1e3
    return Joined(**asdict(seen), waited=waited, link=moved.busiest_link, utilization=moved.busiest_link_utilization)


def _fleet(cell: Cell, block_size: int) -> Fleet:
    way = cell.way
    return Fleet(
        cell.spec,
        way.serving,
        cell.replicas,
        block_size=block_size,
        max_num_seqs=cell.slots,
        max_num_batched_tokens=max(way.chunk, cell.slots),
        num_speculative_tokens=way.drafts,
        acceptance=way.accepted,
        drafter=cell.drafter if way.drafts else None,
    )


def _router(cell: Cell) -> str:
    return "prefix" if cell.load.demands else "least-loaded"


def _seen(cell: Cell, run: Simulation, begin: float, end: float, replicas: int) -> Seen:
    seen = run.run(begin + end + _AFTER * cell.seconds)
    counted = [entry for entry in seen.values() if begin <= entry.at < begin + end]
    waits = np.array([e.first - e.at if e.tokens else np.inf for e in counted])
    each = np.array([(e.last - e.first) / (e.tokens - 1) for e in counted if e.tokens > 1] or [0.0])
    prompts = sum(e.input_len for e in counted)
    return Seen(
        replicas,
        len(counted),
        cell.rate,
        _percentiles(waits, cell.slo),
        _percentiles(each, cell.slo),
        sum(e.cached for e in counted) / prompts if prompts else 0.0,
    )


def _percentiles(values: np.ndarray[tuple[int], np.dtype[np.float64]], slo: Slo) -> tuple[float, float]:
    at = np.percentile(values, [50, slo.percentile], method="inverted_cdf")
    return float(at[0]), float(at[1])


def _drawn(cell: Cell) -> tuple[list[Demand], float, float]:
    """Arrivals at random at the cell's rate, those that count from the first number of seconds on, for the second."""
    load, draw, rate = cell.load, Random(cell.seed), cell.rate * cell.replicas
    begin = _WARM * cell.seconds
    counted = max(_COUNTED * cell.seconds, _FEWEST / rate)
    counted = min(counted, max(_most(cell.way) / rate - begin, 0.1 * counted))
    last = begin + counted + _AFTER * cell.seconds
    answer = 1 if cell.way.does == "prefill" else round(load.output_len)
    prompts = _prompts(cell)
    there = []
    for left in (draw.randint(1, answer) for _ in range(round(cell.running * cell.replicas))):
        # Their prompts are one another's beginnings, so that no time goes into computing what they had before.
        there.append(Demand(0.0, ((_THERE, round(load.prefix_len + load.input_len) + answer - left),), left))
    times = takewhile(lambda at: at < last, poisson(rate)(draw, 0.0))
    return [*there, *(Demand(at, next(prompts), answer) for at in times)], begin, counted


def _prompts(cell: Cell) -> Iterator[tuple[tuple[int, int], ...]]:
    """Each its own after what all begin with. Where decode is apart, prompts are there already: all are the same."""
    load, number = cell.load, 0
    prefix = ((0, load.prefix_len),) if load.prefix_len else ()
    while True:
        number += cell.way.does != "decode" or not number
        yield (*prefix, (number, round(load.input_len)))


def _recorded(cell: Cell) -> tuple[list[Demand], float, float]:
    """The first requests of the trace, at the cell's rate."""
    load = cell.load
    assert load.rate is not None
    demands = load.demands[: max(min(_MOST, round(_MOST_TOKENS / (load.input_len + load.output_len))), 1)]
    faster = cell.rate * cell.replicas / _mean_rate(demands)
    scaled = [one if one.follows is not None else replace(one, at=one.at / faster) for one in demands]
    last = max((one.at for one in scaled if one.follows is None), default=0.0)
    if cell.way.does == "prefill":
        scaled = [replace(one, output_len=1) for one in scaled]
    if cell.way.does == "decode":  # prompts are there already: each is the beginning of one that is
        scaled = [replace(one, prompt=((_THERE, one.input_len),)) for one in scaled]
    return scaled, _RECORDED_WARM * last, (1 - _RECORDED_WARM) * last


def _mean_rate(demands: Sequence[Demand]) -> float:
    last = max((one.at for one in demands if one.follows is None), default=0.0)
    return len(demands) / last if last else 1.0

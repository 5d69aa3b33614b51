"""Cell: one replica of a fleet in virtual time, the real engine with its scheduler, blocks and prefix cache over a
device that takes the time a Pace says; and what its users see: the rate that it sustains, and their waits at a rate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.bench.latency import percentile
from headrace.bench.timed_device import TOKEN, TimedDevice
from headrace.bench.timeline import Timeline
from headrace.bench.virtual import Arrival, run_virtually
from headrace.core.batch import Batch
from headrace.core.config import Config
from headrace.core.disk import TierSizes
from headrace.core.priority import PRIORITY_NAMES
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.plan.question import Load
from headrace.policy.latency import LatencyModel, Prior
from headrace.workload.arrivals import poisson
from headrace.workload.demand import ANSWER, Demand
from headrace.workload.lengths import geometric

_VOCABULARY = 2**31 - 1
_LONGEST_TIMES = 4  # the mean: longer lengths are not drawn
_WARM = 0.2
_UNBOUNDED = 10**9


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds. ttft_p50, ttft_p99: to the first token. itl_p99, stall: between two tokens of a request; the longest."""

    ttft_p50: float
    ttft_p99: float
    itl_p99: float
    stall: float


@dataclass(frozen=True, slots=True)
class Cell:
    """slots, blocks, budget, caching: the engine's. step_s: seconds of a step; prior: as the engine
    expects them. static: a batch begins when all of the
    one before have ended. host_blocks: below the device, each of block_bytes,
    copied there after idle_s."""

    slots: int
    blocks: int
    block_size: int
    budget: int
    longest: int
    step_s: Callable[[Batch], float]
    prior: Prior
    caching: bool = True
    static: bool = False
    host_blocks: int = 0
    block_bytes: int = 0
    idle_s: float = 1.0

    def sustained(self, requests: Sequence[Request]) -> float:
        """Requests a second while there are always more to begin. Of continuous batches, without the time in which the
        first are all new, and the last grow fewer."""
        lines = list(self._run([Arrival(0.0, request) for request in requests]).values())
        tokens = sorted(time for line in lines for time in line.tokens)
        if self.static:
            return len(requests) / tokens[-1]
        ends = sorted(line.last for line in lines)
        begin, end = ends[min(self.slots, len(ends) // 4)], max(line.first for line in lines)
        if end <= begin:  # all ran at once
            return len(requests) / tokens[-1]
        inside = sum(begin < time <= end for time in tokens)
        return inside / (end - begin) * len(requests) / len(tokens)

    def waits(
        self, requests: Sequence[Request], rate: float, seed: int, *, only: int | None = None, warm: float = _WARM
    ) -> Waits:
        """What they wait who arrive at random at so many a second. only: those of this priority. warm: share of them,
        the first, that do not count."""
        times = poisson(rate)(random.Random(seed), 0.0)
        lines = self._run([Arrival(at, request) for at, request in zip(times, requests, strict=False)])
        counted = requests[int(warm * len(requests)) :]
        seen = [lines[r.request_id] for r in counted if only is None or r.priority == only]
        first = sorted(line.first - line.begun for line in seen)
        gaps = sorted(gap for line in seen for gap in line.gaps) or [0.0]
        return Waits(percentile(first, 50), percentile(first, 99), percentile(gaps, 99), gaps[-1])

    def _run(self, arrivals: Sequence[Arrival]) -> dict[str, Timeline]:
        below = TierSizes((self.host_blocks,), (self.block_bytes,), idle_s=self.idle_s) if self.host_blocks else None
        has = Capacity(self.slots, self.block_size, (self.blocks,), (None,), self.longest, _VOCABULARY, below)
        device = TimedDevice(has, self.step_s)
        config = Config(
            max_num_seqs=self.slots,
            max_num_batched_tokens=max(self.budget, self.slots),
            max_queued_requests=_UNBOUNDED,
            enable_prefix_caching=self.caching,
            request_log=0,
            step_ring=0,
        )
        engine = Engine(device, config, latency=LatencyModel(self.prior, learning=False))
        if not self.static:
            return run_virtually(engine, device, arrivals).lines
        lines: dict[str, Timeline] = {}
        waiting = list(reversed(arrivals))
        while waiting:
            device.now = max(device.now, waiting[-1].at)
            batch: list[Arrival] = []
            while waiting and len(batch) < self.slots and waiting[-1].at <= device.now:
                batch.append(waiting.pop())
            part = run_virtually(engine, device, [replace(one, at=0.0) for one in batch]).lines
            for one in batch:
                part[one.request.request_id].begun = one.at
            lines |= part
        return lines


def draw_requests(load: Load, count: int, seed: int, *, room: int, urgent: float = 0.0) -> list[Request]:
    """Requests of a load: those of its trace from the first on, else with lengths drawn about the means, geometric
    ones. room: tokens that none is longer than. urgent: share of them that goes before the others."""
    draw = random.Random(seed)
    demands = load.demands[:count] or tuple(_drawn(load, count, draw, room))
    numbers: dict[int, int] = {ANSWER: TOKEN}
    requests = []
    for index, demand in enumerate(demands):
        prompt: list[int] = []
        for name, length in demand.prompt:
            prompt += [numbers.setdefault(name, TOKEN + len(numbers))] * length
        params = SamplingParams(max_tokens=demand.output_len, temperature=0.0, ignore_eos=True)
        priority = 0 if not urgent else PRIORITY_NAMES["high" if draw.random() < urgent else "batch"]
        requests.append(Request(str(index), prompt, params, demand.output_len, 0, priority=priority))
    return requests


def only_first(request: Request) -> Request:
    """The same for a replica that computes prompts and samples one token."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    return Request(request.request_id, request.prompt_ids, params, 1, request.seed, priority=request.priority)


def _drawn(load: Load, count: int, draw: random.Random, room: int) -> list[Demand]:
    prefix = ((0, load.prefix_len),) if load.prefix_len else ()
    prompts, answers = (geometric(mean, round(_LONGEST_TIMES * mean)) for mean in (load.input_len, load.output_len))
    left = room - load.prefix_len
    demands = []
    for index in range(count):
        prompt = min(prompts(draw), max(left - 1, 1))
        answer = min(answers(draw), max(left - prompt, 1))
        demands.append(Demand(0.0, (*prefix, (index + 1, prompt)), answer))
    return demands

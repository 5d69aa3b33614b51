"""Cell: one replica of a fleet in virtual time, the real engine with its scheduler, blocks and prefix cache over a
device that takes the time a Pace says; and what its users see: the rate that it sustains, and their waits at a rate.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from headrace.bench.latency import percentile
from headrace.bench.timeline import Timeline
from headrace.core.config import Config
from headrace.core.disk import TierSizes
from headrace.core.priority import PRIORITY_NAMES
from headrace.core.request import OutputDelta, Request, SamplingParams
from headrace.engine.executor import Capacity
from headrace.plan.question import Load
from headrace.policy.latency import LatencyModel
from headrace.policy.pace import Pace
from headrace.simulate.executor import ANSWER_TOKEN, TimedExecutor
from headrace.simulate.fleet import VOCABULARY
from headrace.simulate.replica import NEVER, Replica
from headrace.workload.arrivals import poisson
from headrace.workload.demand import ANSWER, Demand
from headrace.workload.lengths import geometric

_LONGEST_TIMES = 4  # the mean: longer lengths are not drawn
_WARM = 0.2
_UNBOUNDED = 10**9
_THERE = ANSWER_TOKEN - 2


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds. ttft_p50, ttft_p99: to the first token. itl_p99, stall: between two tokens of a request; the longest."""

    ttft_p50: float
    ttft_p99: float
    itl_p99: float
    stall: float


@dataclass(frozen=True, slots=True)
class Cell:
    """slots, blocks, budget, caching: the engine's. pace: seconds of a step. static: a batch begins when all of the one
    before have ended. host_blocks: below the device, each of block_bytes, copied there after idle_s."""

    slots: int
    blocks: int
    block_size: int
    budget: int
    longest: int
    pace: Pace
    caching: bool = True
    static: bool = False
    host_blocks: int = 0
    block_bytes: int = 0
    idle_s: float = 1.0

    def sustained(self, requests: Sequence[Request]) -> float:
        """Requests a second while there are always more to begin. Of continuous batches, without the time in which the
        first are all new, and the last grow fewer."""
        lines = self._run([0.0] * len(requests), requests)
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
        lines = self._run([at for at, _ in zip(times, requests, strict=False)], requests)
        counted = range(int(warm * len(requests)), len(requests))
        seen = [lines[i] for i in counted if only is None or requests[i].priority == only]
        first = sorted(line.first - line.begun for line in seen)
        gaps = sorted(gap for line in seen for gap in line.gaps) or [0.0]
        return Waits(percentile(first, 50), percentile(first, 99), percentile(gaps, 99), gaps[-1])

    def _run(self, times: Sequence[float], requests: Sequence[Request]) -> list[Timeline]:
        """When the tokens of each came, who all came at these times, in order."""
        lines = [Timeline(len(r.prompt_ids), at) for at, r in zip(times, requests, strict=True)]

        def take(began: float, device: TimedExecutor, deltas: list[OutputDelta]) -> None:
            ends = device.ends.tolist()
            for delta in deltas:
                lines[int(delta.request_id)].tokens += ends

        replica, at = self._replica(take), 0
        if not self.static:
            for time, together in groupby(zip(times, requests, strict=True), key=lambda one: one[0]):
                replica.add_together([request for _, request in together], time)
        while self.static and at < len(requests):
            now = max(times[at], max((line.last for line in lines[:at]), default=0.0))
            batch = [i for i in range(at, min(at + self.slots, len(requests))) if times[i] <= now]
            replica.add_together([requests[i] for i in batch], now)
            _end(replica)
            at += len(batch)
        _end(replica)
        return lines

    def _replica(self, sink: Callable[[float, TimedExecutor, list[OutputDelta]], None]) -> Replica:
        below = TierSizes((self.host_blocks,), (self.block_bytes,), idle_s=self.idle_s) if self.host_blocks else None
        has = Capacity(self.slots, self.block_size, (self.blocks,), (None,), self.longest, VOCABULARY, below)
        config = Config(
            max_num_seqs=self.slots,
            max_num_batched_tokens=max(self.budget, self.slots),
            max_queued_requests=_UNBOUNDED,
            enable_prefix_caching=self.caching,
            request_log=0,
            step_ring=0,
        )
        return Replica(has, config, self.pace, LatencyModel(self.pace, learning=False), sink)


def _end(replica: Replica) -> None:
    while replica.wake < NEVER:
        replica.woken()


def draw_requests(load: Load, count: int, seed: int, *, room: int, urgent: float = 0.0) -> list[Request]:
    """Requests of a load: those of its trace from the first on, else with lengths drawn about the means, geometric
    ones. room: tokens that none is longer than. urgent: share of them that goes before the others."""
    draw = random.Random(seed)
    demands = load.demands[:count] or tuple(_drawn(load, count, draw, room))
    numbers: dict[int, int] = {ANSWER: ANSWER_TOKEN}
    requests = []
    for index, demand in enumerate(demands):
        prompt: list[int] = []
        for name, length in demand.prompt:
            prompt += [numbers.setdefault(name, ANSWER_TOKEN + len(numbers))] * length
        params = SamplingParams(max_tokens=demand.output_len, temperature=0.0, ignore_eos=True)
        priority = 0 if not urgent else PRIORITY_NAMES["high" if draw.random() < urgent else "batch"]
        requests.append(Request(str(index), prompt, params, demand.output_len, index, priority=priority))
    return requests


def only_first(request: Request) -> Request:
    """The same for a replica that computes prompts and samples one token."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    return msgspec.structs.replace(request, params=params, max_tokens=1)


def with_prompt_there(request: Request) -> Request:
    """The same for a replica to which prompts come computed: each is the beginning of one that is there."""
    return msgspec.structs.replace(request, prompt_ids=[_THERE] * len(request.prompt_ids))


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

"""A Candidate: one or two pools of replicas that serve a question's load, sized: how many replicas, GPUs and nodes, and
what they cost. Unified replicas do both prefill and decode; of split pools the one's KV goes to the other over NICs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware
from headrace.plan.question import Load, Question
from headrace.plan.steady import Point, Replica
from headrace.policy.roofline import Serving

POOLED = 8
"""Replicas behind a router that knows their load, whose deviations are counted together where there are so many."""

_SETTLING = 6  # rounds in which the rate of users and their latencies come to agree
_LINK = 0.65  # share of a NIC's bandwidth that a transfer reaches, as measured between nodes (fitted_kernels.py)
_BUSY = 0.7  # share of that which transfers may take, so that they seldom wait for each other


class Times(Protocol):
    """Seconds to the first token and for each after it, as computed or seen: two each, the usual and the late."""

    @property
    def ttft(self) -> tuple[float, float]: ...

    @property
    def tpot(self) -> tuple[float, float]: ...


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas of one way. most: the point of the highest rate that one bears behind a router of POOLED or more; lone:
    among fewer, None where it bears none. bound: "network" where its NICs are what bounds it. correction: of its
    rates, by what the simulation says, once it was rehearsed."""

    replica: Replica
    most: Point
    lone: Point | None = None
    bound: str = ""
    correction: float = 1.0
    rehearsed: bool = False

    @property
    def devices(self) -> int:
        return self.replica.way.serving.devices

    @property
    def capacity(self) -> float:
        """Requests a second of one of many replicas."""
        return self.most.rate * self.correction

    def replicas(self, rate: float, headroom: float) -> int:
        """As many as bear the rate and the headroom on top: POOLED at most where these would do together."""
        wanted = rate * (1 + headroom) / self.correction
        many = _count(wanted / self.most.rate)
        if many >= POOLED or self.lone is None:
            return max(many, POOLED)
        return min(_count(wanted / self.lone.rate), POOLED)

    def nodes(self, replicas: int) -> int:
        """Nodes for so many replicas, each whole in a node if it fits into one."""
        per_node = self.replica.way.serving.hardware.per_node
        if self.devices > per_node:
            return replicas * -(-self.devices // per_node)
        return -(-replicas // (per_node // self.devices))


@dataclass(frozen=True, slots=True)
class Candidate:
    """pools: one that does both, or one of prefill and one of decode. replicas: of each. rate: requests a second."""

    pools: tuple[Pool, ...]
    replicas: tuple[int, ...]
    rate: float
    transfer_bytes: int = 0

    @property
    def split(self) -> bool:
        return len(self.pools) > 1

    @property
    def gpu(self) -> Hardware:
        return self.pools[0].replica.way.serving.hardware

    @property
    def gpus(self) -> int:
        return sum(pool.devices * count for pool, count in zip(self.pools, self.replicas, strict=True))

    @property
    def nodes(self) -> int:
        return sum(pool.nodes(count) for pool, count in zip(self.pools, self.replicas, strict=True))

    @property
    def cost_per_hour(self) -> float:
        return self.gpus * price_of(self.gpu)

    @property
    def transfer_seconds(self) -> float:
        """Of one request's KV, from all ranks of one replica to all of another."""
        return transfer_seconds(self.transfer_bytes, *(pool.replica.way.serving for pool in self.pools))

    def at_load(self, question: Question) -> tuple[Point, ...]:
        """Each pool's replicas at the rate that they get."""
        return tuple(
            pool.replica.bears(self.rate / count / pool.correction, question.slo, pooled(count), pool.most)
            for pool, count in zip(self.pools, self.replicas, strict=True)
        )

    def times(self, points: Sequence[Times]) -> tuple[tuple[float, float], tuple[float, float]]:
        """Seconds to the first token and for each after it, in the mean and at the percentile."""
        decode = points[-1]
        if not self.split:
            return decode.ttft, decode.tpot
        mean, late = (a + b + self.transfer_seconds for a, b in zip(points[0].ttft, decode.ttft, strict=True))
        return (mean, late), decode.tpot


def _count(replicas: float) -> int:
    return max(math.ceil(replicas - 1e-9), 1)


def price_of(gpu: Hardware) -> float:
    if gpu.price_per_hour is None:
        raise ConfigError(f"no price of {gpu.name} is known; give --price {gpu.name}=USD an hour", field="price")
    return gpu.price_per_hour


def pooled(replicas: int) -> int:
    return POOLED if replicas >= POOLED else 1


def sized(pools: tuple[Pool, ...], question: Question, transfer_bytes: int = 0) -> Candidate:
    """With as many replicas as the load needs and the headroom on top. Of users who think between questions the rate is
    at first that of the longest latencies allowed; `settled` says what it comes to."""
    load, rate = question.load, question.load.rate
    if rate is None:
        one = Candidate(pools, (1,) * len(pools), 1.0, transfer_bytes)
        rate = _asked_by_users(load, *one.times([pool.most for pool in pools]))
    return _with_rate(Candidate(pools, (), rate, transfer_bytes), rate, question)


def settled(candidate: Candidate, question: Question) -> Candidate:
    """The same at the rate that users come to: they ask the sooner the sooner they are answered (Little's law)."""
    if question.load.rate is None:
        for _ in range(_SETTLING):
            rate = _asked_by_users(question.load, *candidate.times(candidate.at_load(question)))
            candidate = _with_rate(candidate, rate, question)
    return candidate


def _with_rate(candidate: Candidate, rate: float, question: Question) -> Candidate:
    replicas = tuple(pool.replicas(rate, question.limits.headroom) for pool in candidate.pools)
    return replace(candidate, rate=rate, replicas=replicas)


def corrected(candidate: Candidate, corrections: Sequence[float], question: Question) -> Candidate:
    """The same with other capacities."""
    pools = tuple(replace(p, correction=c, rehearsed=True) for p, c in zip(candidate.pools, corrections, strict=True))
    return settled(_with_rate(replace(candidate, pools=pools), candidate.rate, question), question)


def transfer_bytes(replica: Replica, load: Load) -> int:
    """Bytes of one request's keys and values that go from prefill to decode; the prefix is there already."""
    serving = replica.way.serving
    return replica.spec.kv_bytes(math.ceil(load.input_len), serving.cache)


def transfer_seconds(transfer: int, *servings: Serving) -> float:
    """Over the NICs of the fewest ranks on either side."""
    return transfer / (min(serving.ranks for serving in servings) * servings[0].hardware.nic * _LINK)


def network_bears(transfer: int, pool: Pool) -> float:
    """Requests a second whose transfers the NICs of one replica's ranks bear."""
    serving = pool.replica.way.serving
    return serving.devices * serving.hardware.nic * _LINK * _BUSY / transfer


def _asked_by_users(load: Load, ttft: tuple[float, float], tpot: tuple[float, float]) -> float:
    """Requests a second of users who wait for their answers, and think."""
    assert load.users is not None
    return load.users / (load.think_time + ttft[0] + load.output_len * tpot[0])

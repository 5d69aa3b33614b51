"""plan: the least cost that keeps a question's times: an analytic search over ways to serve the model, then the best
few simulated with the real scheduler, and their number of replicas corrected by what that says.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from headrace.core.hardware import Hardware
from headrace.plan.answer import Plan
from headrace.plan.candidate import (
    POOLED,
    Candidate,
    Pool,
    network_bears,
    settled,
    sized,
    transfer_bytes,
    transfer_seconds,
)
from headrace.plan.choice import chosen
from headrace.plan.explanation import explained
from headrace.plan.memory import Memory
from headrace.plan.question import Question, Slo
from headrace.plan.refusal import refusal
from headrace.plan.steady import Replica, Way
from headrace.plan.ways import first_ways, may_be_chosen, memory_for, variants
from headrace.policy.latency import Prior
from headrace.policy.roofline import Roofline, Serving

Progress = Callable[[str], None]

_REFINED = 6
"""Ways to serve whose chunks and drafts are varied."""

_PAIRED = 3
"""Ways to serve of each of two pools that are tried together."""


def plan(question: Question, *, progress: Progress = lambda line: None) -> Plan:
    """The cheapest way to serve the question's load. ConfigError that says which limit is broken, and the nearest
    answer that is not, where there is none."""
    found = analytic(question, progress)
    if not any(kept(one, question) for one in found):
        raise refusal(question, found[0].pools[-1].replica.way if found else None)
    if question.simulate:
        return explained(question, *chosen(question, found, kept, progress))
    return explained(question, found, found[0], None)


def analytic(question: Question, progress: Progress = lambda line: None) -> list[Candidate]:
    """Candidates of the latency model alone, each GPU's and dtypes' best, the cheapest that keeps quality first."""
    found: list[Candidate] = []
    for gpu in question.gpus:
        progress(f"weighing ways to serve {question.name} on {gpu.name}")
        search = _Search(question, gpu)
        if "unified" in question.limits.pools:
            found += search.unified()
        if "split" in question.limits.pools:
            found += search.split()
    found = [settled(one, question) for one in found]
    return sorted(found, key=lambda one: (not kept(one, question), *_order(one)))


def kept(candidate: Candidate, question: Question) -> bool:
    """Whether a candidate may be the answer."""
    return all(may_be_chosen(pool.replica.way, question.limits) for pool in candidate.pools)


def _order(candidate: Candidate) -> tuple[float, ...]:
    """The cheapest first; of equal ones that of fewest nodes, one pool, the smallest replicas, the plainest."""
    way = candidate.pools[-1].replica.way
    devices = tuple(float(pool.devices) for pool in candidate.pools)
    return (
        round(candidate.cost_per_hour, 6),
        candidate.nodes,
        len(candidate.pools),
        max(devices),
        way.serving.stages,
        way.drafts,
        -way.chunk,
    )


class _Search:
    """Among the ways of one GPU. Memory and roofline of a cut are computed once for all chunks, drafts and pools."""

    def __init__(self, question: Question, gpu: Hardware) -> None:
        self._question = question
        self._memory: dict[tuple[Serving, int, bool], Memory | None] = {}
        self._priors: dict[Serving, tuple[Roofline, Prior]] = {}
        ways = [way for way in first_ways(question.model, gpu, question.limits) if self._held(way) is not None]
        # A replica of more than a node is tried only where none of one node holds the model.
        self._ways = [way for way in ways if way.serving.devices <= gpu.per_node] or ways

    def unified(self) -> list[Candidate]:
        """The best two for each pair of dtypes, with drafts and without."""
        ways, limits = self._ways, self._question.limits
        first = self._sized(ways)
        if first:
            best = sorted((one for one in first if kept(one, self._question)), key=_order)[:_REFINED]
            ways = [one.pools[0].replica.way for one in [*best, *_best_of_each(first)]]
        varied = dict.fromkeys(v for way in ways for v in variants(way, limits))
        return _best_of_each([*first, *self._sized(varied)], most=2)

    def split(self) -> list[Candidate]:
        """The best pair of pools for each pair of dtypes."""
        alike: dict[tuple[str, str], list[Way]] = {}
        for way in self._ways:
            alike.setdefault((str(way.serving.weights), way.serving.cache), []).append(way)
        best = (sorted(self._pairs(ways), key=_order)[:1] for ways in alike.values())
        return [pair for pairs in best for pair in pairs]

    def _sized(self, ways: Iterable[Way]) -> list[Candidate]:
        pools = (self._pool(way, self._question.slo) for way in ways)
        return [sized((pool,), self._question) for pool in pools if pool is not None]

    def _pairs(self, ways: list[Way]) -> Iterator[Candidate]:
        """Pools of decode with pools of prefill that leave time for the transfer and the first decode step."""
        question, slo = self._question, self._question.slo
        for decode in _cheapest(self._pool(replace(way, does="decode"), slo) for way in ways):
            moved = transfer_bytes(decode.replica, question.load)
            prompts = []
            for way in (replace(w, does="prefill", chunk=c, drafts=0) for w in ways for c in question.limits.chunks):
                after = decode.most.ttft[1] + transfer_seconds(moved, way.serving, decode.replica.way.serving)
                if after < slo.ttft:
                    prompts.append(self._pool(way, replace(slo, ttft=slo.ttft - after)))
            for prefill in _cheapest(prompts):
                pools = tuple(_held_by_network(question, pool, moved) for pool in (prefill, decode))
                yield sized(pools, question, moved)

    def _pool(self, way: Way, slo: Slo) -> Pool | None:
        """None where it fits no memory or keeps no times."""
        question, memory = self._question, self._held(way)
        if memory is None:
            return None
        if way.serving not in self._priors:
            roofline = Roofline(question.model, way.serving)
            self._priors[way.serving] = roofline, question.drafter.pace(way.serving)
        roofline, drafting = self._priors[way.serving]
        replica = Replica(question.model, way, question.load, memory, drafting, roofline)
        most = replica.capacity(slo, POOLED)
        if most is None:
            return None
        rate = question.load.rate
        few = rate is None or rate * (1 + question.limits.headroom) < POOLED * most.rate
        return Pool(replica, most, replica.capacity(slo, 1) if few else None)

    def _held(self, way: Way) -> Memory | None:
        key = way.serving, way.chunk, way.drafts > 0
        if key not in self._memory:
            self._memory[key] = memory_for(self._question, way)
        return self._memory[key]


def _best_of_each(candidates: Iterable[Candidate], most: int = 1) -> list[Candidate]:
    """The cheapest few for each pair of dtypes, with drafts and without."""
    by_dtypes: dict[tuple[str, str, bool], list[Candidate]] = {}
    for one in sorted(candidates, key=_order):
        way = one.pools[0].replica.way
        by_dtypes.setdefault((str(way.serving.weights), way.serving.cache, way.drafts > 0), []).append(one)
    return [one for group in by_dtypes.values() for one in group[:most]]


def _cheapest(pools: Iterable[Pool | None]) -> list[Pool]:
    there = [pool for pool in pools if pool is not None]
    return sorted(there, key=lambda pool: (pool.devices / pool.most.rate, pool.devices))[:_PAIRED]


def _held_by_network(question: Question, pool: Pool, moved: int) -> Pool:
    """The pool at no higher a rate than its NICs bear."""
    bears = network_bears(moved, pool)
    if bears >= pool.most.rate:
        return pool
    most = pool.replica.bears(bears, question.slo, POOLED, pool.most)
    return replace(pool, most=most, lone=most, bound="network")

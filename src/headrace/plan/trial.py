"""Trial: what a recipe comes to for a question: the GPUs that its load needs, what they cost, and how long
users wait, by one cell of the fleet in virtual time (two where prefill and decode are apart).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.hardware import Hardware
from headrace.core.priority import PRIORITY_NAMES
from headrace.core.request import Request
from headrace.plan.cell import Cell, Waits, draw_requests, only_first, with_prompt_there
from headrace.plan.question import Question
from headrace.plan.recipe import BLOCK, Recipe, Replica, best_replica, pace_of, room
from headrace.workload.arrivals import season

_IDLE_S = 1.0  # after which blocks are copied to the host's memory
# Requests of a simulated load: at least, and times that all slots are filled, to see what is sustained and how long
# users wait.
FEWEST, ROUNDS, WAIT_ROUNDS = 300, 3.0, 1.5
_PROMPT_SLOTS, _PROMPT_CHUNK = 64, 2048  # of a replica that computes prompts alone
_FULLER = 0.02  # headroom where what may wait fills what is left over
_NIC_SHARE = 0.65  # of a NIC's bandwidth that one transfer reaches
_MOST_HOST_BLOCKS = 1 << 16
_SWAPPED_BLOCKS = 1 << 13  # on the host, for what gave way
_WEEK = 7 * 24  # hours


@dataclass(frozen=True, slots=True)
class Trial:
    """gpus: at the peak. cost: US dollars an hour, in the mean over a week. ranks, slots: of a replica, of the one that
    decodes where there are two. in_time: whether 99 % of first tokens are; those after them are by the choice of slots.
    """

    gpus: int
    cost: float
    waits: Waits
    in_time: bool
    ranks: int
    slots: int

    def figures(self) -> dict[str, Any]:
        waits = self.waits
        return {
            "gpus": self.gpus,
            "cost_per_hour_usd": round(self.cost, 2),
            "ttft_ms": {"p50": _ms(waits.ttft_p50), "p99": _ms(waits.ttft_p99)},
            "itl_p99_ms": _ms(waits.itl_p99),
            "max_stall_ms": _ms(waits.stall),
            "keeps_slo": self.in_time,
            "tensor_parallel_size": self.ranks,
            "max_num_seqs": self.slots,
        }


class Trials:
    """Tries recipes of serving a question on one kind of GPU, each once."""

    def __init__(self, question: Question, gpu: Hardware) -> None:
        self._question = question
        self._gpu = gpu
        self._known: dict[Recipe, Trial] = {}
        self.rate = _rate(question)

    def of(self, recipe: Recipe) -> Trial:
        """ConfigError where the recipe cannot serve the question."""
        if recipe not in self._known:
            self._known[recipe] = self._try(recipe)
        return self._known[recipe]

    def _try(self, recipe: Recipe) -> Trial:
        if recipe.elastic:
            flat = self.of(replace(recipe, elastic=False))
            return replace(flat, cost=flat.cost * season_mean())
        if recipe.offload and not self._returns():
            return self.of(replace(recipe, offload=False))
        if recipe.contiguous and self._replica(recipe) == self._replica(replace(recipe, contiguous=False)):
            return self.of(replace(recipe, contiguous=False))
        return self._split(recipe) if recipe.split else self._unified(recipe)

    def _replica(self, recipe: Recipe) -> Replica:
        return best_replica(self._question, self._gpu, recipe, prompts=not recipe.split)

    def _unified(self, recipe: Recipe) -> Trial:
        question = self._question
        replica = self._replica(recipe)
        requests = self._requests(replica.slots, recipe)
        cell = self._cell(recipe, replica)
        rate = cell.sustained(requests) / self._headroom(recipe)
        waiting = requests[: _count(replica.slots, WAIT_ROUNDS)]
        waits = cell.waits(waiting, rate, question.seed + 1, only=_urgent(recipe))
        return self._trial(math.ceil(self.rate / rate) * replica.serving.devices, waits, replica)

    def _split(self, recipe: Recipe) -> Trial:
        """Prompts on replicas of their own, whose blocks go to those that decode."""
        question, headroom, only = self._question, self._headroom(recipe), _urgent(recipe)
        replica = self._replica(recipe)
        requests = self._requests(replica.slots, recipe)
        there = [with_prompt_there(request) for request in requests]
        decode = replace(self._cell(recipe, replica), caching=True)
        decoded = decode.sustained(there) / headroom
        waiting = _count(replica.slots, WAIT_ROUNDS)
        after = decode.waits(there[:waiting], decoded, question.seed + 1, only=only)
        prefill = replace(self._cell(replace(recipe, drafts=0), replica), slots=_PROMPT_SLOTS, budget=_PROMPT_CHUNK)
        firsts = [only_first(request) for request in requests]
        begun = prefill.sustained(firsts) / headroom
        before = prefill.waits(firsts[:waiting], begun, question.seed + 1, only=only)
        devices = replica.serving.devices
        moved = max(len(request.prompt_ids) for request in requests) * replica.block_bytes / BLOCK
        sent = moved / (devices * self._gpu.nic * _NIC_SHARE)
        waits = Waits(before.ttft_p50, before.ttft_p99, after.itl_p99, after.stall + sent)
        replicas = math.ceil(self.rate / begun) + math.ceil(self.rate / decoded)
        return self._trial(replicas * devices, waits, replica)

    def _headroom(self, recipe: Recipe) -> float:
        headroom = self._question.limits.headroom
        return 1 + (min(headroom, _FULLER) if recipe.urgent else headroom)

    def _trial(self, gpus: int, waits: Waits, replica: Replica) -> Trial:
        price = self._gpu.price_per_hour or 0.0
        in_time = waits.ttft_p99 <= self._question.slo.ttft
        return Trial(gpus, gpus * price, waits, in_time, replica.serving.ranks, replica.slots)

    def _cell(self, recipe: Recipe, replica: Replica) -> Cell:
        most = _MOST_HOST_BLOCKS if recipe.offload else _SWAPPED_BLOCKS if recipe.urgent else 0
        host = min(replica.serving.devices * self._gpu.host_memory_bytes // replica.block_bytes, most)
        return Cell(
            slots=replica.slots,
            blocks=replica.blocks,
            block_size=BLOCK,
            budget=recipe.chunk,
            longest=room(self._question.load),
            pace=pace_of(self._question, recipe, replica.serving),
            caching=recipe.caching,
            static=recipe.static,
            host_blocks=host if recipe.caching else 0,
            idle_s=_IDLE_S if recipe.offload else math.inf,
            block_bytes=replica.block_bytes,
        )

    def _requests(self, slots: int, recipe: Recipe) -> list[Request]:
        load = self._question.load
        return draw_requests(load, _count(slots, ROUNDS), self._question.seed, urgent=recipe.urgent, room=room(load))

    def _returns(self) -> bool:
        """Whether anything that was computed for one request is asked again by another, beside the common prefix."""
        names = [name for demand in self._question.load.demands for name, _ in demand.prompt]
        return len(set(names)) < len(names)


def season_mean() -> float:
    """Replicas in the mean over a week, as a share of those at its peak, which are there an hour before they are needed
    and an hour after."""
    asked = [season(hour / 24) for hour in range(_WEEK)]
    return sum(max(asked[hour - 1], asked[hour], asked[(hour + 1) % _WEEK]) for hour in range(_WEEK)) / _WEEK


def _count(slots: int, rounds: float) -> int:
    return max(FEWEST, round(rounds * slots))


def _rate(question: Question) -> float:
    """Requests a second; of users, as fast as they come where answers take all the time that they may."""
    load, slo = question.load, question.slo
    if load.rate is not None:
        return load.rate
    assert load.users is not None, "a load has a rate or users"
    return load.users / (load.think_time + slo.ttft + load.output_len * slo.tpot)


def _urgent(recipe: Recipe) -> int | None:
    """The priority whose waits count."""
    return PRIORITY_NAMES["high"] if recipe.urgent else None


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)

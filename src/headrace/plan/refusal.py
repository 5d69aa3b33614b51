"""Why a question has no answer, and the nearest one that has: weights that fit no number of GPUs allowed, or times that
one request alone cannot keep, with the limit that is in the way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.core.errors import ConfigError
from headrace.core.hardware import KNOWN, Hardware
from headrace.plan.question import Limits, Question
from headrace.plan.steady import Replica, Way
from headrace.plan.ways import first_ways, may_be_chosen, memory_for, weights_of
from headrace.policy.roofline import Serving

_ROUNDED = 1.02  # of a time that is offered: so much above what was computed, so that it is kept
_NEAR_NOTHING = 1e-3  # requests running


@dataclass(frozen=True, slots=True)
class _Best:
    """The least seconds at next to no load, at the percentile asked for, and the way that has them."""

    seconds: float
    way: Way

    def __str__(self) -> str:
        s = self.way.serving
        cut = (f"{s.stages} stages of " if s.stages > 1 else "") + f"{s.ranks} {s.hardware.name}"
        return f"{self.seconds * 1e3 * _ROUNDED:.1f} ms on {cut} with {s.weights} weights"


def refusal(question: Question, unasked: Way | None = None) -> ConfigError:
    """The error to raise for a question without an answer. unasked: a way that serves it, which costs quality."""
    if unasked is not None:
        asked = f"--precision {unasked.serving.weights} --kv-cache-dtype {unasked.serving.cache}"
        return ConfigError(
            f"no way to serve {question.name} that keeps its quality fits the GPUs and the times; one that costs "
            f"some does: ask for it with {asked}",
            field="precision",
        )
    if not any(_replicas(question, question.gpus, question.limits)):
        return ConfigError(_no_room(question), field="max_tp")
    told = [_too_fast(question, name) for name in ("ttft", "tpot")]
    broken = [text for text in told if text]
    if not broken:
        first, each = (_best(question, question.gpus, question.limits, name) for name in ("ttft", "tpot"))
        broken = [f"slo_ttft_ms and slo_tpot_ms cannot be kept together: alone, {first} and {each} are possible"]
    return ConfigError("; ".join(broken), field="slo_tpot_ms" if told[1] else "slo_ttft_ms")


def _too_fast(question: Question, name: str) -> str:
    """What is wrong with one of the times, empty if some way keeps it at next to no load."""
    asked = getattr(question.slo, name)
    best = _best(question, question.gpus, question.limits, name)
    if best.seconds <= asked:
        return ""
    text = (
        f"slo_{name}_ms of {asked * 1e3:g} is below what one request alone takes: {best}, where "
        f"{_why(question, best, name)}; ask for {best.seconds * 1e3 * _ROUNDED:.1f} or more"
    )
    others = tuple(gpu for gpu in KNOWN.values() if gpu.name not in {g.name for g in question.gpus})
    free = replace(question.limits, weights=(), caches=(), max_tp=Limits().max_tp)
    for gpus, limits in ((question.gpus, free), (others, free)):
        if any(_replicas(question, gpus, limits)):
            other = _best(question, gpus, limits, name)
            if other.seconds <= asked:
                return f"{text}, or have {other}"
    return text


def _why(question: Question, best: _Best, name: str) -> str:
    """The limit that one request alone meets."""
    serving, spec = best.way.serving, question.model
    if name == "tpot":
        weights = spec.weight_bytes(serving.weights) / serving.ranks
        least = weights / serving.hardware.bandwidth * 1e3
        rate = serving.hardware.bandwidth / 1e12
        return f"bandwidth binds: reading {weights / 1e9:.1f} GB of weights a GPU at {rate:.2f} TB/s is {least:.1f} ms"
    operations = 2.0 * spec.active_parameters * question.load.input_len / serving.ranks
    peak = max(rate for _, rate in serving.hardware.peaks)
    least = operations / peak * 1e3
    return f"arithmetic binds: a prompt is {operations / 1e12:.1f} TFLOP a GPU, {least:.1f} ms at its peak"


def _best(question: Question, gpus: Sequence[Hardware], limits: Limits, name: str) -> _Best:
    found = []
    for replica in _replicas(question, gpus, limits):
        point = replica.at(_NEAR_NOTHING, question.slo, 1)
        found.append(_Best(getattr(point, name)[1], replica.way))
    return min(found, key=lambda best: (round(best.seconds, 4), best.way.serving.devices))


def _replicas(question: Question, gpus: Sequence[Hardware], limits: Limits) -> Iterator[Replica]:
    for gpu in gpus:
        for way in first_ways(question.model, gpu, limits):
            memory = memory_for(question, way)
            if memory is not None and may_be_chosen(way, limits):
                yield Replica(question.model, way, question.load, memory, question.drafter.pace(way.serving))


def _no_room(question: Question) -> str:
    """Which bytes do not fit where, how many GPUs would hold them, and which dtype would fit."""
    limits, spec = question.limits, question.model
    told = []
    for gpu in question.gpus:
        most = min(limits.max_tp, gpu.per_node) * limits.max_pp
        least = min(weights_of(gpu, limits), key=spec.weight_bytes)
        size = spec.weight_bytes(least)
        text = (
            f"{question.name} with {least} weights of {size / 1e9:.0f} GB and one request beside them do not fit into "
            f"{most} {gpu.name} ({most * gpu.memory_bytes / 1e9:.0f} GB, of which a tenth is kept free)"
        )
        ways = [
            f"{devices} {gpu.name} hold them (--max-tp {ranks} --max-pp {stages})"
            for devices, ranks, stages in _holding(question, gpu, least)
        ][:1]
        free = replace(limits, weights=())
        ways += [
            f"{way.serving.weights} weights fit {way.serving.devices}"
            for way in first_ways(spec, gpu, free)
            if memory_for(question, way) is not None
        ][:1]
        told.append(text + (f"; {', or '.join(ways)}" if ways else "; no number of them would"))
    return "; ".join(told)


def _holding(question: Question, gpu: Hardware, weights: str) -> list[tuple[int, int, int]]:
    """(devices, tensor, pipeline) parallel sizes that hold the model, the fewest devices first."""
    cache = (question.limits.caches or ("bf16",))[0]
    every = replace(question.limits, max_tp=gpu.per_node, max_pp=len(question.model.layers), weights=(weights,))
    found = []
    for way in first_ways(question.model, gpu, replace(every, caches=(cache,))):
        serving: Serving = way.serving
        if memory_for(question, way) is not None:
            found.append((serving.devices, serving.ranks, serving.stages))
    return sorted(found, key=lambda held: (held[0], held[2]))

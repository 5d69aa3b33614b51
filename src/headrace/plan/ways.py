"""Ways to serve a model on a GPU: which cuts, dtypes, chunks and drafts are worth trying, and what a dtype costs in
quality. Tensor parallelism stays inside a node: each layer ends in two all-reduces of all tokens' hidden states, for
which a NIC has an eighth of the bandwidth of a node's links; a pipeline hands on one hidden state for each stage.
"""

from collections.abc import Iterator
from dataclasses import replace

from headrace.core.hardware import Hardware
from headrace.core.model_spec import ModelSpec
from headrace.plan.memory import Memory, memory_of
from headrace.plan.question import CACHE_DTYPES, Limits, Question
from headrace.plan.steady import Way
from headrace.policy.roofline import Serving

WHY_TP_IN_A_NODE = (
    "tensor parallelism stays inside a node: each layer all-reduces every token's hidden state twice, "
    "and its links carry {link:.0f} GB/s where the NIC to the next node carries {nic:.0f}"
)

QUALITY = {
    "bf16": "as trained",
    "fp8": "no loss that tests show",
    "int8": "1 to 3 % of scores",
    "int4": "1 to 3 % of scores (weights alone in 4 bits)",
    "fp4": "2 to 5 % of scores, unless trained for it",
}
"""What weights of a dtype cost. Source of all but fp4: Kurtic et al., arXiv:2411.02355, Llama 3.1 of 8B to 405B; fp4 is
a guess. Hold them against your own task before you plan with them."""

KEEPS_QUALITY = ("bf16", "fp8")
"""Dtypes of weights and cache that are chosen unasked; cheaper ones are shown beside the answer."""

_CHUNK, _WEIGHTS, _SIZES = 2048, ("bf16", "fp8", "int8", "int4", "fp4"), (1, 2, 4, 8, 16, 32)


def first_ways(spec: ModelSpec, gpu: Hardware, limits: Limits) -> Iterator[Way]:
    """Every cut and pair of dtypes, with one chunk and no drafts."""
    chunk = _CHUNK if _CHUNK in limits.chunks else limits.chunks[0]
    drafts = 0 if 0 in limits.drafts else limits.drafts[0]
    for weights in weights_of(gpu, limits):
        for cache in caches_of(gpu, limits):
            for ranks, stages in cuts(spec, gpu, limits):
                yield Way(Serving(gpu, ranks, weights, cache, stages), chunk, drafts, limits.accepted)


def cuts(spec: ModelSpec, gpu: Hardware, limits: Limits) -> Iterator[tuple[int, int]]:
    """(tensor, pipeline) parallel sizes: what divides the heads and fits a node, and no more stages than layers."""
    heads = min(layer.attention.heads for layer in spec.layers)
    for ranks in _SIZES:
        if ranks <= min(limits.max_tp, gpu.per_node) and heads % ranks == 0:
            for stages in _SIZES:
                if stages <= min(limits.max_pp, len(spec.layers)):
                    yield ranks, stages


def variants(way: Way, limits: Limits) -> Iterator[Way]:
    """The same with every chunk and number of drafts."""
    for chunk in limits.chunks:
        for drafts in limits.drafts:
            yield replace(way, chunk=chunk, drafts=drafts)


def weights_of(gpu: Hardware, limits: Limits) -> tuple[str, ...]:
    """Dtypes of weights to try: those the GPU multiplies, and 4-bit integers, which kernels unpack to 16 bits. Of two
    that are multiplied alike, fp8 is as fast as int8 and loses less."""
    if limits.weights:
        return limits.weights
    has = {dtype for dtype, _ in gpu.peaks} | {"int4"}
    return tuple(dtype for dtype in _WEIGHTS if dtype in has and not (dtype == "int8" and "fp8" in has))


def caches_of(gpu: Hardware, limits: Limits) -> tuple[str, ...]:
    if limits.caches:
        return limits.caches
    eight = "fp8" if any(dtype == "fp8" for dtype, _ in gpu.peaks) else "int8"
    return tuple(dtype for dtype in CACHE_DTYPES if dtype in ("bf16", eight))


def memory_for(question: Question, way: Way) -> Memory | None:
    """What a GPU holds; None where it does not fit."""
    drafter = question.drafter if way.drafts else None
    return memory_of(question.model, way.serving, way.chunk, question.load, drafter)


def may_be_chosen(way: Way, limits: Limits) -> bool:
    """Whether a way may be the answer: nothing that costs quality, and no drafts, how many of which hold depends on the
    texts, unless asked for."""
    if way.drafts and not limits.drafted:
        return False
    weights = str(way.serving.weights)
    return (bool(limits.weights) or weights in KEEPS_QUALITY) and (
        bool(limits.caches) or way.serving.cache in KEEPS_QUALITY
    )

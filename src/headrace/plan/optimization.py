"""Optimizations of serving, in the order in which they are usually taken: what each changes of a Recipe, what stands
behind its figures, and how much effort it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from headrace.core.hardware import Hardware
from headrace.core.model_spec import WeightTypes
from headrace.plan.recipe import Recipe

EFFORT = {
    1: "a setting of a server",
    2: "a setting, and something to watch over: quality, clients that say what is urgent, memory of hosts",
    3: "weights or a drafter that somebody has to make and keep",
    4: "a component that has to be run",
    5: "a fleet of two kinds with a network between them",
}

CHUNK = 1024
"""Tokens of a step where prompts are cut."""
URGENT = 0.2
"""Share of requests that go before the others."""
DRAFTS = 3

ENGINE = "engine"
"""The real scheduler, blocks and cache, simulated."""
SHORTER_STEPS = "engine, step times by the model"
"""The same, where the optimization itself is in the device's times."""
POOLS = "two engines"
ARITHMETIC = "arithmetic"


@dataclass(frozen=True, slots=True)
class Optimization:
    """how: what stands behind its figures. apply: the recipe with it, on this hardware. kept_for: its saving alone; or,
    where it costs nothing, shorter waits; or others that need it, as caching of prefixes needs pages."""

    name: str
    effort: int
    how: str
    apply: Callable[[Recipe, Hardware], Recipe]
    kept_for: Literal["saving", "waits", "others"] = "saving"


def _mixed(gpu: Hardware) -> WeightTypes:
    eight = "fp8" if any(dtype == "fp8" for dtype, _ in gpu.peaks) else "int8"
    return WeightTypes(embedding="bf16", attention=eight, ffn="int4")


OPTIMIZATIONS: tuple[Optimization, ...] = (
    Optimization("continuous batching", 1, ENGINE, lambda recipe, gpu: replace(recipe, static=False)),
    Optimization("paged memory", 1, ENGINE, lambda recipe, gpu: replace(recipe, contiguous=False), "others"),
    Optimization("prefix caching", 1, ENGINE, lambda recipe, gpu: replace(recipe, caching=True)),
    Optimization("FP8 weights", 2, SHORTER_STEPS, lambda recipe, gpu: replace(recipe, weights="fp8")),
    Optimization("FP8 KV cache", 2, SHORTER_STEPS, lambda recipe, gpu: replace(recipe, cache="fp8")),
    Optimization("INT4 weights", 3, SHORTER_STEPS, lambda recipe, gpu: replace(recipe, weights="int4")),
    Optimization(
        "mixed precision by layer", 3, SHORTER_STEPS, lambda recipe, gpu: replace(recipe, weights=_mixed(gpu))
    ),
    Optimization("speculation", 3, SHORTER_STEPS, lambda recipe, gpu: replace(recipe, drafts=DRAFTS)),
    Optimization("chunked prefill", 1, ENGINE, lambda recipe, gpu: replace(recipe, chunk=CHUNK), "waits"),
    Optimization("prefill and decode apart", 5, POOLS, lambda recipe, gpu: replace(recipe, split=True)),
    Optimization("priority with swap", 2, ENGINE, lambda recipe, gpu: replace(recipe, urgent=URGENT), "waits"),
    Optimization("KV offload", 2, ENGINE, lambda recipe, gpu: replace(recipe, offload=True)),
    Optimization("elastic scaling", 4, ARITHMETIC, lambda recipe, gpu: replace(recipe, elastic=True)),
)

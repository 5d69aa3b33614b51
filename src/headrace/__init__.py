"""Headrace: an LLM inference engine and serving system. `from headrace import LLM, SamplingParams` is the offline
face; `headrace.plan(...)`, `headrace.ablate(...)` and `headrace.simulate(...)` are the planner's and the simulator's.
Importing the package alone loads nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.core.request import SamplingParams
    from headrace.core.structured import StructuredOutputsParams
    from headrace.llm import LLM
    from headrace.outputs import CompletionOutput, RequestOutput
    from headrace.plan.api import ablate, plan
    from headrace.simulate.api import simulate

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "ablate",
    "plan",
    "simulate",
]

_HOMES = {
    "LLM": "headrace.llm",
    "SamplingParams": "headrace.core.request",
    "StructuredOutputsParams": "headrace.core.structured",
    "CompletionOutput": "headrace.outputs",
    "RequestOutput": "headrace.outputs",
    "ablate": "headrace.plan.api",
}
# Rooms that are verbs: the package itself is what is called.
_VERBS = ("plan", "simulate")


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        return importlib.import_module(f"headrace.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

"""Headrace: an LLM inference engine and serving system. `from headrace import LLM, SamplingParams` is the offline
face; importing the package alone loads nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.core.request import SamplingParams
    from headrace.core.structured import StructuredOutputsParams
    from headrace.llm import LLM
    from headrace.outputs import CompletionOutput, RequestOutput

__version__ = "0.1.0"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "StructuredOutputsParams", "__version__"]

_HOMES = {
    "LLM": "headrace.llm",
    "SamplingParams": "headrace.core.request",
    "StructuredOutputsParams": "headrace.core.structured",
    "CompletionOutput": "headrace.outputs",
    "RequestOutput": "headrace.outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

"""The families that can be served, by the name a checkpoint gives its architecture."""

from __future__ import annotations

import difflib
from pathlib import Path

from headrace.core.errors import ModelError
from headrace.models.families.family import Family
from headrace.models.families.llama import LLAMA
from headrace.models.families.qwen2 import QWEN2

FAMILIES: tuple[Family, ...] = (LLAMA, QWEN2)

_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}
_BY_GGUF = {family.gguf: family for family in FAMILIES}


def family_of_config(architectures: object, path: Path) -> Family:
    """Family of config.json's `architectures`. Raises ModelError listing the supported ones and the nearest."""
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else architectures
    return _find(name, _BY_ARCHITECTURE, path)


def family_of_gguf(architecture: object, path: Path) -> Family:
    """Family of GGUF's general.architecture. Raises ModelError listing the supported ones and the nearest."""
    return _find(architecture, _BY_GGUF, path)


def _find(name: object, known: dict[str, Family], path: Path) -> Family:
    if isinstance(name, str):
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise ModelError(
            f"{path}: architecture {name!r} is not supported; supported are {', '.join(sorted(known))}{hint}"
        )
    raise ModelError(f"{path}: it names no architecture (found {name!r}); supported are {', '.join(sorted(known))}")

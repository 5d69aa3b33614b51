"""The families that can be served, by the name a checkpoint gives its architecture."""

import difflib
from pathlib import Path

from headrace.core.errors import ModelError
from headrace.models.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from headrace.models.families.family import Family
from headrace.models.families.gemma2 import GEMMA2
from headrace.models.families.gemma3 import GEMMA3, GEMMA3_WITH_IMAGES
from headrace.models.families.granite import GRANITE
from headrace.models.families.llama import LLAMA
from headrace.models.families.mistral import MISTRAL
from headrace.models.families.mixtral import MIXTRAL
from headrace.models.families.olmo2 import OLMO2
from headrace.models.families.olmoe import OLMOE
from headrace.models.families.phi3 import PHI3
from headrace.models.families.qwen2 import QWEN2
from headrace.models.families.qwen3 import QWEN3
from headrace.models.families.qwen3_moe import QWEN3_MOE
from headrace.models.families.smollm3 import SMOLLM3

DENSE: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    GEMMA3_WITH_IMAGES,
    PHI3,
    OLMO2,
    GRANITE,
    SMOLLM3,
)
MIXTURES: tuple[Family, ...] = (MIXTRAL, QWEN3_MOE, OLMOE)
DESCRIBED: tuple[Family, ...] = (DEEPSEEK_V2, DEEPSEEK_V3)
"""Families whose sizes are known but that lowering refuses, naming what is missing."""

FAMILIES: tuple[Family, ...] = (*DENSE, *MIXTURES)

_BY_ARCHITECTURE = {name: family for family in (*FAMILIES, *DESCRIBED) for name in family.architectures}
_SUPPORTED = {name: family for name, family in _BY_ARCHITECTURE.items() if family in FAMILIES}
_BY_GGUF = {family.gguf: family for family in (*FAMILIES, *DESCRIBED) if family.gguf is not None}
_SUPPORTED_GGUF = {name: family for name, family in _BY_GGUF.items() if family in FAMILIES}


def family_of_config(architectures: object, path: Path) -> Family:
    """Family of config.json's `architectures`. Raises ModelError listing the supported ones and the nearest."""
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else architectures
    return _find(name, _BY_ARCHITECTURE, _SUPPORTED, path)


def family_of_gguf(architecture: object, path: Path) -> Family:
    """Family of GGUF's general.architecture. Raises ModelError listing the supported ones and the nearest."""
    return _find(architecture, _BY_GGUF, _SUPPORTED_GGUF, path)


def _find(name: object, known: dict[str, Family], supported: dict[str, Family], path: Path) -> Family:
    if isinstance(name, str):
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, supported, n=1, cutoff=0)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise ModelError(
            f"{path}: architecture {name!r} is not supported; supported are {', '.join(sorted(supported))}{hint}"
        )
    raise ModelError(f"{path}: it names no architecture (found {name!r}); supported are {', '.join(sorted(supported))}")

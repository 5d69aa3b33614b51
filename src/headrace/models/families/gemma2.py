"""Gemma 2: every other layer, from the first on, sees a window; attention scores and logits are softly capped.

Source: arXiv:2408.00118.
"""

from __future__ import annotations

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense, gemma
from headrace.models.families.family import Family, Fields, TensorFacts


def _is_local(layer: int) -> bool:
    return layer % 2 == 0


def _from_config(config: Fields) -> ModelSpec:
    spec = gemma.config_spec("gemma2", config, theta=10_000.0)
    return dense.with_windows(spec, dense.windows_by_type(config, _is_local))


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    spec = gemma.gguf_spec("gemma2", header, facts, layers_of_27b=46, softcaps=(50.0, 30.0))
    window = dense.gguf_window(header) or 4096  # early files do not say it
    return dense.with_windows(spec, tuple(window if _is_local(i) else None for i in range(len(spec.layers))))


GEMMA2 = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    from_config=_from_config,
    gguf="gemma2",
    from_gguf=_from_gguf,
    hub_names=gemma.GEMMA_NAMES,
)

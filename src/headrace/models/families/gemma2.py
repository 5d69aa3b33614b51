"""Gemma 2: every other layer, from the first on, sees a window; attention scores and logits are softly capped.

Source: arXiv:2408.00118.
"""

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
    # Early files do not say the window.
    return dense.with_windows(spec, dense.gguf_windows(header, len(spec.layers), _is_local, window=4096))


GEMMA2 = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    from_config=_from_config,
    gguf="gemma2",
    from_gguf=_from_gguf,
    hub_names=gemma.GEMMA_NAMES,
)

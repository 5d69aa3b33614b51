"""Mistral: Llama with one window over all layers, where config.json gives one. Its GGUF files are of architecture
llama.

Source: arXiv:2310.06825.
"""

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Family, Fields


def _from_config(config: Fields) -> ModelSpec:
    spec = dense.from_config("mistral", config)
    return dense.with_windows(spec, dense.windows_by_type(config, lambda layer: True))


MISTRAL = Family(name="mistral", architectures=("MistralForCausalLM",), from_config=_from_config)

"""OLMo 2: norms after each branch and none before it, and a norm over all query heads together, and all key heads.

Source: arXiv:2501.00656.
"""

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense
from headrace.models.families.family import Family, Fields, TensorFacts


def _own(spec: ModelSpec) -> ModelSpec:
    return dense.with_norms(dense.with_attention(spec, qk_norm="full"), "post")


def _from_config(config: Fields) -> ModelSpec:
    return _own(dense.from_config("olmo2", config, biases=True))


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    return _own(dense.from_gguf("olmo2", header, facts))


OLMO2 = Family(
    name="olmo2",
    architectures=("Olmo2ForCausalLM",),
    from_config=_from_config,
    gguf="olmo2",
    from_gguf=_from_gguf,
)

"""Llama (1 to 3.3), and what is built exactly like it: SmolLM, SmolLM2, TinyLlama, Vicuna, Yi. GGUF files of Mistral
and Mixtral are of this architecture too.

Source: arXiv:2302.13971; rope scaling of 3.1 on: arXiv:2407.21783, section 3.2.
"""

from headrace.core.model_spec import ModelSpec
from headrace.models.families import dense, experts
from headrace.models.families.family import Family, Fields, TensorFacts


def _from_config(config: Fields) -> ModelSpec:
    return dense.from_config("llama", config, biases=True)


def _from_gguf(header: Fields, facts: TensorFacts) -> ModelSpec:
    spec = dense.from_gguf("llama", header, facts, windows=True)
    spec = dense.with_windows(spec, dense.gguf_windows(header, len(spec.layers), lambda layer: True))
    return experts.of_gguf(spec, header, normalize=True) if header.get("expert_count") else spec


LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    from_config=_from_config,
    gguf="llama",
    from_gguf=_from_gguf,
    gguf_paired_rope=True,
)

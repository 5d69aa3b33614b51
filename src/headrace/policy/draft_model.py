"""Who guesses ahead for a model, as far as time and memory go: a smaller model on the same devices and in the same
dtypes, or a layer trained on top of it, which shares its embedding and its output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.core.errors import ConfigError
from headrace.core.model_spec import ModelSpec, WeightTypes, item_bytes
from headrace.policy.pace import VLLM_HOST, Host, Pace
from headrace.policy.roofline import Roofline, Serving

_HOST = Host(kernels=VLLM_HOST.kernels, step=2e-4)
"""A guess: a captured graph is launched and the likeliest tokens are taken; nothing is scheduled between two steps."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """shares: whether embedding and output are those of the model that it guesses for."""

    spec: ModelSpec
    shares: bool = False

    def check(self, spec: ModelSpec) -> None:
        """ConfigError unless it may guess for this model."""
        if self.spec.vocab_size != spec.vocab_size:
            raise ConfigError(
                f"speculative_model must have the model's own {spec.vocab_size} tokens, got one with "
                f"{self.spec.vocab_size}",
                field="speculative_model",
            )

    def weight_bytes(self, dtype: str | WeightTypes) -> int:
        """Bytes of what it has of its own."""
        spec = self.spec
        tables = 1 if spec.tied_embeddings else 2
        shared = tables * spec.vocab_size * spec.hidden * item_bytes(WeightTypes.of(dtype).embedding)
        return spec.weight_bytes(dtype) - int(shared if self.shares else 0)

    def pace(self, serving: Serving) -> Pace:
        """Seconds of its steps, on one stage's devices."""
        return Pace(Roofline(self.spec, replace(serving, stages=1)), _HOST)


def layer_on_top(spec: ModelSpec) -> DraftModel:
    """One more of the last layer, as in EAGLE (Li et al. 2024) or DeepSeek's multi-token prediction."""
    return DraftModel(replace(spec, layers=spec.layers[-1:]), shares=True)

"""Who guesses ahead for a model, as far as time and memory go: a smaller model on the same devices and in the same
dtypes, or a layer trained on top of it, which shares its embedding and its output.
"""

from dataclasses import dataclass, replace

from headrace.core.config import MOST_SPECULATIVE_TOKENS
from headrace.core.errors import ConfigError
from headrace.core.model_spec import ModelSpec, WeightTypes, item_bytes
from headrace.policy.pace import VLLM_HOST, Host, Pace
from headrace.policy.roofline import Roofline, Serving

ACCEPTANCE = 0.6
"""Odds that a guess which follows right ones is right, where nobody says."""
_HOST = Host(kernels=VLLM_HOST.kernels, step=2e-4)
"""A guess: a captured graph is launched and the likeliest tokens are taken; nothing is scheduled between two steps."""


def check_guessing(tokens: int | None, acceptance: float | None = None, model: object = None) -> None:
    """ConfigError unless it makes sense to ask for these together. tokens: guessed in a step at most, None: as many as
    pay; acceptance: the odds as above; model: who guesses."""
    if tokens is not None and not 0 <= tokens <= MOST_SPECULATIVE_TOKENS:
        raise ConfigError(
            f"num_speculative_tokens must be from 0 to {MOST_SPECULATIVE_TOKENS}, got {tokens}",
            field="num_speculative_tokens",
        )
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise ConfigError(f"acceptance must be from 0 to 1, got {acceptance}", field="acceptance")
    if tokens == 0 and model is not None:
        raise ConfigError(
            "speculative_model needs num_speculative_tokens above 0: how many it guesses in a step",
            field="num_speculative_tokens",
        )
    if tokens == 0 and acceptance is not None:
        raise ConfigError("acceptance goes with num_speculative_tokens above 0", field="acceptance")


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

"""Pipeline parallelism: which layers each stage of devices has, and how long micro-batches take to go round them.
A stage works on one micro-batch at a time, in the order in which they entered; the rest of its time is the bubble.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.core.errors import ConfigError
from headrace.core.model_spec import ModelSpec, WeightTypes, item_bytes


@dataclass(frozen=True, slots=True)
class Stage:
    """spec: the model with this stage's layers alone. first: it embeds tokens; last: it has the head, and samples."""

    spec: ModelSpec
    first: bool = True
    last: bool = True

    def weight_bytes(self, dtype: str | WeightTypes) -> int:
        """Bytes of what this stage keeps of the model's weights. Both ends keep an embedding that is also the head."""
        spec, types = self.spec, WeightTypes.of(dtype)
        elsewhere = 2 - self.first - self.last if not spec.tied_embeddings else not (self.first or self.last)
        table = spec.vocab_size * spec.hidden * item_bytes(types.embedding)
        return spec.weight_bytes(types) - int(elsewhere * table)


def cut(spec: ModelSpec, stages: int) -> tuple[Stage, ...]:
    """So many stages of layers as even as they can be, those at the front having one more: the last has the head.
    ConfigError where there are fewer layers than stages."""
    layers = spec.layers
    if not 1 <= stages <= len(layers):
        raise ConfigError(
            f"pipeline parallel size must be 1 to {len(layers)}, the model's layers, got {stages}",
            field="pipeline_parallel_size",
        )
    least, more = divmod(len(layers), stages)
    ends = [(i + 1) * least + min(i + 1, more) for i in range(stages)]
    return tuple(
        Stage(replace(spec, layers=layers[begin:end]), begin == 0, end == len(layers))
        for begin, end in zip([0, *ends], ends, strict=False)
    )


def period(stages: Sequence[float], micro: int) -> float:
    """Seconds between two turns of a micro-batch, of so many that go round for ever, each entering anew when it has
    left, as a token needs the one before: the pipeline is either not full, or its slowest stage never rests."""
    return max(sum(stages), micro * max(stages))

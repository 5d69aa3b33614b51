"""Requests to measure with: random token ids, greedy, of exact length (EOS ignored). The same seed gives the same
prompts.
"""

import random
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.request import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Shape:
    """What a measurement runs: num_prompts requests of input_len prompt tokens and output_len generated ones."""

    num_prompts: int
    input_len: int
    output_len: int
    seed: int = 0

    def check(self, max_model_len: int) -> None:
        """Raise ConfigError for a shape that cannot run."""
        for name in ("num_prompts", "input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}", field=name)
        if self.input_len + self.output_len > max_model_len:
            raise ConfigError(
                f"input_len ({self.input_len}) and output_len ({self.output_len}) must fit max_model_len "
                f"({max_model_len}) together",
                field="output_len",
            )


def random_requests(shape: Shape, vocab_size: int) -> list[Request]:
    """num_prompts requests. The first hundred ids are left out: special tokens live there in many vocabularies."""
    draw = random.Random(shape.seed)
    low = min(100, vocab_size // 2)
    params = SamplingParams(temperature=0.0, max_tokens=shape.output_len, ignore_eos=True)
    return [
        Request(
            request_id=f"bench-{shape.seed}-{index}",
            prompt_ids=[draw.randrange(low, vocab_size) for _ in range(shape.input_len)],
            params=params,
            max_tokens=shape.output_len,
            seed=0,
        )
        for index in range(shape.num_prompts)
    ]


def warm_up_request(shape: Shape, vocab_size: int) -> list[Request]:
    """One short request like those of the shape, with a prompt of its own."""
    one = Shape(1, shape.input_len, min(shape.output_len, 8), seed=shape.seed + 1)
    return random_requests(one, vocab_size)

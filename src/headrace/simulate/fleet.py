"""Fleet: what is simulated. Replicas of one kind, each a model on some devices with an engine's settings; and what one
replica holds, as far as memory decides it.
"""

from dataclasses import dataclass

from headrace.core.config import Config
from headrace.core.errors import ConfigError
from headrace.core.model_spec import KVGroup, ModelSpec
from headrace.engine.executor import Capacity
from headrace.policy.draft_model import ACCEPTANCE, DraftModel, check_guessing
from headrace.policy.memory import USABLE, cache_bytes, token_bytes
from headrace.policy.pace import VLLM_HOST, Host, Pace
from headrace.policy.pipeline import Stage, cut
from headrace.policy.roofline import Roofline, Serving
from headrace.simulate.guesses import Guessing

VOCABULARY = 2**31 - 1
"""Prompts are made of names of contents, not of a model's tokens, so there are as many as there may be."""

_UNBOUNDED = 2**31


@dataclass(frozen=True, slots=True)
class Fleet:
    """replicas: how many, each `spec` run as `serving` says. block_size to gpu_memory_utilization are an engine's
    settings by their usual names; max_model_len None is what the model allows. host: what the engine's host adds to a
    step. num_speculative_tokens: guessed ahead, 0 for none, of which each that follows right ones is right with odds
    `acceptance`; drafter: the model that guesses, None if guessing takes neither time nor memory."""

    spec: ModelSpec
    serving: Serving
    replicas: int = 1
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    gpu_memory_utilization: float = USABLE
    enable_prefix_caching: bool = True
    host: Host = VLLM_HOST
    num_speculative_tokens: int = 0
    acceptance: float = ACCEPTANCE
    drafter: DraftModel | None = None

    def __post_init__(self) -> None:
        for name in ("replicas", "block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}", field=name)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization must be above 0 and at most 1, got {self.gpu_memory_utilization}",
                field="gpu_memory_utilization",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running request can move in every step",
                field="max_num_batched_tokens",
            )
        longest = self.spec.max_position
        if self.max_model_len is not None and not 1 <= self.max_model_len <= longest:
            raise ConfigError(
                f"max_model_len must be from 1 to {longest}, the model's context, got {self.max_model_len}",
                field="max_model_len",
            )
        guesses = self.num_speculative_tokens
        check_guessing(guesses, self.acceptance if guesses else None, self.drafter)
        if self.drafter is not None:
            self.drafter.check(self.spec)

    @property
    def guessing(self) -> Guessing | None:
        """How tokens are guessed ahead, if they are."""
        if not self.num_speculative_tokens:
            return None
        pace = None if self.drafter is None else self.drafter.pace(self.serving)
        return Guessing(self.num_speculative_tokens, self.acceptance, pace)

    def pace(self) -> Pace:
        """Seconds of a replica's steps."""
        return Pace(Roofline(self.spec, self.serving), self.host)

    def config(self) -> Config:
        """The settings of a replica's engine. Its queue has no end, and it keeps no records of what ended."""
        return Config(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            num_speculative_tokens=max(self.num_speculative_tokens, 1),
            max_queued_requests=_UNBOUNDED,
            request_log=0,
            step_ring=0,
        )

    def capacity(self) -> Capacity:
        """What a replica holds. ConfigError where the weights do not fit, or leave no room for a block."""
        longest = self.spec.max_position if self.max_model_len is None else self.max_model_len
        # Blocks are in proportion to what one longest sequence needs of each group, as many as every stage holds.
        groups = self.spec.kv_groups
        needed = [self._blocks(group, longest) for group in groups]
        share = min(self._sequences(stage, longest) for stage in cut(self.spec, self.serving.stages))
        num_blocks = tuple(int(share * count) for count in needed)
        if min(num_blocks) < 1:
            raise ConfigError(
                f"what {self.serving.weights} weights leave of {self.serving.devices} {self.serving.hardware.name} "
                f"holds no KV block of {self.block_size} tokens: take more devices or fewer bits",
                field="gpu_memory_utilization",
            )
        windows = tuple(group.window for group in groups)
        return Capacity(self.max_num_seqs, self.block_size, num_blocks, windows, longest, VOCABULARY)

    def _sequences(self, stage: Stage, length: int) -> float:
        """How many sequences of this length a stage holds, with what the model that guesses keeps of them."""
        drafter = self.drafter
        groups = stage.spec.kv_groups if drafter is None else (*stage.spec.kv_groups, *drafter.spec.kv_groups)
        one = sum(self._blocks(group, length) * self.block_size * token_bytes(group, self.serving) for group in groups)
        taken = 0 if drafter is None else drafter.weight_bytes(self.serving.weights)
        return cache_bytes(stage, self.serving, self.gpu_memory_utilization, beside=taken) / one

    def _blocks(self, group: KVGroup, length: int) -> int:
        """Blocks of one sequence of this length; a window also holds the tokens of a step."""
        blocks = -(-length // self.block_size)
        if group.window is None:
            return blocks
        return min(blocks, (group.window + self.max_num_batched_tokens) // self.block_size + 2)

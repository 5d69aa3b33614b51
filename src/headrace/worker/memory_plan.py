"""MemoryPlan: where the bytes go (weights, KV blocks, activations) and what fits. It turns settings, the model's KV
groups and the machine's memory into a number of blocks and a longest sequence, or an error that says what would
fit. Pure arithmetic; worker/machine.py measures.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from headrace.core.config import Config
from headrace.core.errors import ConfigError, MachineError
from headrace.core.kv_layout import KVDtype, KVLayout
from headrace.core.model_spec import KVGroup

KV_SHARE = 0.25
"""Most of the allowed memory that the KV cache takes unless told otherwise."""
RESERVE_BYTES = 256 * 2**20
"""Left free for the interpreter, the API process and the system."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by purpose. num_blocks, block_bytes and sequence_blocks (what one sequence of max_model_len holds at most)
    have one number per KV group, and so has host_blocks: what is set aside below the cache, empty for nothing. The
    draft model's groups come last, and draft_weight_bytes are part of weight_bytes."""

    allowed_bytes: int
    available_bytes: int
    weight_bytes: int
    activation_bytes: int
    num_blocks: tuple[int, ...]
    block_bytes: tuple[int, ...]
    sequence_blocks: tuple[int, ...]
    max_model_len: int
    host_blocks: tuple[int, ...] = ()
    draft_weight_bytes: int = 0

    @property
    def kv_bytes(self) -> int:
        return sum(n * size for n, size in zip(self.num_blocks, self.block_bytes, strict=True))

    @property
    def longest_sequences(self) -> int:
        """Sequences of max_model_len that the cache holds together, by the group that runs out first."""
        return min(have // needed for have, needed in zip(self.num_blocks, self.sequence_blocks, strict=True))


def plan_memory(
    config: Config,
    groups: tuple[KVGroup, ...],
    *,
    max_position: int,
    weight_bytes: int,
    activation_bytes: int,
    allowed_bytes: int,
    available_bytes: int,
    draft_weight_bytes: int = 0,
) -> MemoryPlan:
    """config must be resolved. Raises ConfigError where a setting cannot be met, MachineError where the machine is
    too small for the model whatever the settings."""
    layouts = tuple(KVLayout.of(group, config.block_size, cast(KVDtype, config.kv_cache_dtype)) for group in groups)
    if config.max_model_len is not None and config.max_model_len > max_position:
        raise ConfigError(
            f"max_model_len ({config.max_model_len}) must be at most {max_position}, the longest context of this model",
            field="max_model_len",
        )
    wanted = max_position if config.max_model_len is None else config.max_model_len
    free = available_bytes - weight_bytes - activation_bytes - RESERVE_BYTES
    if free <= 0:
        raise MachineError(
            f"this model needs {mib(weight_bytes)} MiB for weights and {mib(activation_bytes)} MiB for activations, "
            f"beside {mib(RESERVE_BYTES)} MiB in reserve, but only {mib(available_bytes)} MiB can be used here: "
            "choose a smaller or more quantized model, or lower max_num_batched_tokens"
        )
    below = 0 if config.kv_offloading_size is None else int(config.kv_offloading_size * 2**30)
    if below >= free:
        raise ConfigError(
            f"kv_offloading_size ({config.kv_offloading_size} GiB) must leave room for the KV cache: {mib(free)} MiB "
            "are left beside the weights",
            field="kv_offloading_size",
        )
    num_blocks = _blocks(config, groups, layouts, wanted, free - below, allowed_bytes)
    longest = _longest(config, groups, num_blocks, wanted)
    if longest < wanted and config.max_model_len is not None:
        needed = _bytes(_needed_blocks(config, groups, wanted), layouts)
        raise ConfigError(
            f"max_model_len ({wanted}) cannot fit: one sequence needs {mib(needed)} MiB of KV cache and "
            f"{mib(_bytes(num_blocks, layouts))} MiB are set aside. Set max_model_len to at most {longest}, or "
            f"kv_cache_memory_bytes to at least {needed}",
            field="max_model_len",
        )
    if longest < 1:
        raise ConfigError(
            "the KV cache is too small for a single block: "
            f"it needs at least {_bytes([1] * len(layouts), layouts)} bytes",
            field="kv_cache_memory_bytes" if config.num_kv_blocks is None else "num_kv_blocks",
        )
    return MemoryPlan(
        allowed_bytes=allowed_bytes,
        available_bytes=available_bytes,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        num_blocks=num_blocks,
        block_bytes=tuple(layout.block_bytes for layout in layouts),
        sequence_blocks=_needed_blocks(config, groups, longest),
        max_model_len=longest,
        host_blocks=_host_blocks(below, num_blocks, layouts) if below else (),
        draft_weight_bytes=draft_weight_bytes,
    )


def mib(size: int) -> int:
    return -(-size // 2**20)


def _blocks(
    config: Config,
    groups: tuple[KVGroup, ...],
    layouts: tuple[KVLayout, ...],
    max_len: int,
    free: int,
    allowed: int,
) -> tuple[int, ...]:
    """Blocks per group: as set, or what fits in the default share but no more than all slots can use."""
    if config.num_kv_blocks is not None:
        blocks = (config.num_kv_blocks,) * len(groups)
        if _bytes(blocks, layouts) > free:
            raise ConfigError(
                f"num_kv_blocks ({config.num_kv_blocks}) needs {mib(_bytes(blocks, layouts))} MiB, but {mib(free)} MiB "
                f"are left beside the weights: at most {free // _bytes([1] * len(layouts), layouts)} fit",
                field="num_kv_blocks",
            )
        return blocks
    one = _needed_blocks(config, groups, max_len)
    if config.kv_cache_memory_bytes is not None:
        if config.kv_cache_memory_bytes > free:
            raise ConfigError(
                f"kv_cache_memory_bytes ({config.kv_cache_memory_bytes}) is more than the {free} bytes "
                "left beside the weights",
                field="kv_cache_memory_bytes",
            )
        return _divide(config.kv_cache_memory_bytes, one, layouts)
    most = tuple(n * config.max_num_seqs for n in one)
    fitting = _divide(min(free, int(allowed * KV_SHARE)), one, layouts)
    return tuple(min(a, b) for a, b in zip(most, fitting, strict=True))


def _host_blocks(size: int, num_blocks: tuple[int, ...], layouts: tuple[KVLayout, ...]) -> tuple[int, ...]:
    """Blocks per group below the cache, in proportion to what the cache holds."""
    blocks = _divide(size, num_blocks, layouts)
    if min(blocks) < 1:
        raise ConfigError(
            f"kv_offloading_size ({size} bytes) must hold a block of each kind: at least "
            f"{_bytes(num_blocks, layouts) // min(num_blocks)} bytes",
            field="kv_offloading_size",
        )
    return blocks


def _needed_blocks(config: Config, groups: tuple[KVGroup, ...], length: int) -> tuple[int, ...]:
    """Blocks of one sequence of this length. A window also holds the tokens of all steps under way, which all read it,
    and two blocks more for where its ends fall."""
    under_way = config.max_num_batched_tokens * config.pipeline_depth
    needed = []
    for group in groups:
        blocks = -(-length // config.block_size)
        if group.window is not None:
            blocks = min(blocks, (group.window + under_way) // config.block_size + 2)
        needed.append(blocks)
    return tuple(needed)


def _divide(size: int, one: tuple[int, ...], layouts: tuple[KVLayout, ...]) -> tuple[int, ...]:
    """Blocks per group when size bytes are shared in proportion to what one longest sequence needs of each."""
    whole = _bytes(one, layouts)
    return tuple(size * n // whole for n in one)


def _longest(config: Config, groups: tuple[KVGroup, ...], num_blocks: tuple[int, ...], wanted: int) -> int:
    """Longest sequence, up to wanted, that the blocks hold."""

    def lacking(length: int) -> int:
        needed = _needed_blocks(config, groups, length)
        return max(n - have for n, have in zip(needed, num_blocks, strict=True))

    return bisect_right(range(1, wanted + 1), 0, key=lacking)


def _bytes(blocks: Sequence[int], layouts: tuple[KVLayout, ...]) -> int:
    return sum(n * layout.block_bytes for n, layout in zip(blocks, layouts, strict=True))

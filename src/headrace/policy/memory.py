"""What a replica's devices hold: weights, and the KV cache in what they leave."""

from headrace.core.errors import ConfigError
from headrace.core.model_spec import KVGroup, item_bytes
from headrace.policy.pipeline import Stage
from headrace.policy.roofline import Serving

USABLE = 0.9
"""Share of a device's memory that a server takes by default."""

BESIDE = 3e9
"""Bytes of each device for activations, graphs and communication."""


def cache_bytes(stage: Stage, serving: Serving, usable: float = USABLE, beside: int = 0) -> float:
    """Bytes of each device of a stage that are left for keys and values. beside: of another model's weights on it.
    ConfigError where the weights do not fit, with the least number of devices into which they do."""
    hardware, ranks = serving.hardware, serving.ranks
    each = int(hardware.memory_bytes * usable - BESIDE)
    weights = stage.weight_bytes(serving.weights) + beside
    if each * ranks <= weights:
        needed = next((n for n in (1, 2, 4, 8, 16) if n <= hardware.per_node and each * n > weights), None)
        hint = f"; {needed} would hold them" if needed else f"; no {hardware.per_node} of one node hold them"
        raise ConfigError(
            f"{weights:,} bytes of {serving.weights} weights do not fit into {ranks * each:,} usable bytes of "
            f"{ranks} {hardware.name}{hint}",
            field="tensor_parallel_size",
        )
    return (each * ranks - weights) / ranks


def token_bytes(group: KVGroup, serving: Serving) -> float:
    """Bytes of each device that one token takes in a KV group: a head that several ranks need is kept by each."""
    heads = max(group.kv_heads / serving.ranks, 1)
    return len(group.layers) * heads * (group.k_dim + group.v_dim) * item_bytes(serving.cache)

"""What routers are told of a prefix cache: blocks stored, blocks removed, all cleared. Shapes and names are vLLM's, so
that what listens to its engines can listen to ours. Policy only records; engine/kv_events.py sends.
"""

import msgspec

DEVICE = "device"
"""The medium of all events: tiers below the device are not told of."""


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Whole blocks that follow each other are in the cache now. block_hashes: their names (chain.py);
    parent_block_hash: of the block before the first, None at the start of a prompt; token_ids: of all of them."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str = DEVICE


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """These blocks are in the cache no longer."""

    block_hashes: list[bytes]
    medium: str = DEVICE


class AllBlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Nothing is in the cache."""


BlockEvent = BlockStored | BlockRemoved | AllBlocksCleared

"""What must hold inside an engine between any two operations, read from its structures: each block is held exactly as
often as tables say, and the tree says of each block what the device holds. Each check returns what is wrong, or "".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.policy.ledger_device import root_hash, step_hash


def check_blocks(engine, saw: Callable[[str], None] = lambda name: None) -> str:
    """Every block is free, idle, or held by those whose tables have it; never two of these."""
    blocks = engine._blocks
    order = engine._slots.order.tolist()
    for group, pool in enumerate(blocks.pools):
        counted = np.zeros(pool.num_blocks, np.int32)
        for slot in order:
            last = blocks._capacity[slot] // blocks.block_size
            counted[blocks._tables[group, slot, blocks._first[group, slot] : last]] += 1
        if (counted != pool.refs).any():
            return f"group {group}: references are {pool.refs.tolist()}, tables say {counted.tolist()}"
        nobodys = [*pool._free[: pool.num_free].tolist(), *pool.idle.blocks().tolist()]
        if len(set(nobodys)) != len(nobodys):
            return f"group {group}: a block is free twice: {sorted(nobodys)}"
        if len(nobodys) + np.count_nonzero(counted) != pool.num_blocks or counted[nobodys].any():
            return f"group {group}: free {sorted(nobodys)} and held {counted.tolist()} do not make the pool"
        if (counted > 1).any():
            saw("block shared")
    return ""


def check_tree(engine, cells, arriving) -> str:
    """cells[group][block]: the hashes that the device holds. Every block of the tree holds its prefix, or will before
    anyone reads it (arriving), and no block is in the tree twice."""
    cache = engine._blocks.cache
    if cache is None:
        return ""
    found = 0
    stack = [(root, root_hash(salt)) for salt, root in cache.roots.items()]
    while stack:
        node, state = stack.pop()
        if node.parent is not None:
            chain = []
            for token in np.frombuffer(node.key, np.int32).tolist():
                state = step_hash(state, token)
                chain.append(state)
            size = engine._blocks.block_size
            for group, index in np.argwhere(node.blocks >= 0).tolist():
                block, held = node.blocks[group, index], chain[index * size : (index + 1) * size]
                found += 1
                if cells[group][block, : len(held)].tolist() != held and (group, block) not in arriving:
                    return f"block {group}:{block} does not hold what the tree says"
                if cache._owners[group][block] is not node:
                    return f"block {group}:{block} is in the tree twice"
        stack += [(child, state) for child in (node.children or {}).values()]
    return "" if found == len(cache) else f"the tree reaches {found} of its {len(cache)} blocks"

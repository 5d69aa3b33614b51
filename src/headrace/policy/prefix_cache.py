"""Which cached blocks hold which prefix. A tree with one node for each block of tokens; a node is found from its
parent by the block's exact tokens, so two prefixes are never mistaken for each other. Requests with different
salts live under different roots.

The tree owns no block: block_manager tells it what to remember and what is gone.
"""

from __future__ import annotations

from headrace.core.batch import IntArray

ABSENT = -1


class Node:
    """blocks[g]: the block that holds these tokens in KV group g, or ABSENT. users: running requests whose chain
    ends here. A node lives while it has a block, a child or a user."""

    __slots__ = ("blocks", "children", "key", "parent", "users")

    def __init__(self, parent: Node | None, key: bytes, num_groups: int) -> None:
        self.parent = parent
        self.key = key
        self.blocks = [ABSENT] * num_groups
        # None rather than empty: most nodes are leaves, and each dict would be one more object to keep track of.
        self.children: dict[bytes, Node] | None = None
        self.users = 0


class PrefixCache:
    """windows[g]: the attention window of group g in tokens, or None. A hit needs all blocks of groups without a
    window, and of those with one only the blocks that the next position still sees."""

    def __init__(self, block_size: int, windows: tuple[int | None, ...]) -> None:
        self._block_size = block_size
        self._windows = windows
        self._roots: dict[str, Node] = {}
        self._owners: list[dict[int, Node]] = [{} for _ in windows]

    def __len__(self) -> int:
        """Cached blocks, over all groups."""
        return sum(len(owners) for owners in self._owners)

    def root(self, salt: str) -> Node:
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, salt.encode(), len(self._windows))
        return root

    def lookup(self, salt: str, tokens: IntArray, most: int) -> list[Node]:
        """The nodes of the longest usable prefix of at most `most` tokens, in order; empty for a miss."""
        node = self._roots.get(salt)
        data = memoryview(tokens.tobytes())
        width = 4 * self._block_size
        chain: list[Node] = []
        while node is not None and len(chain) < most // self._block_size:
            at = len(chain) * width
            node = node.children.get(bytes(data[at : at + width])) if node.children else None
            if node is not None:
                chain.append(node)
        return chain[: self._usable(chain)]

    def _usable(self, chain: list[Node]) -> int:
        length = len(chain)
        # present[g][n]: how many blocks of group g are cached without a gap just before block n.
        present: list[list[int]] = []
        for group, window in enumerate(self._windows):
            runs = [0]
            for node in chain:
                runs.append(runs[-1] + 1 if node.blocks[group] != ABSENT else 0)
            present.append(runs)
            if window is None:
                length = min(length, next((n for n, run in enumerate(runs) if run < n), length + 1) - 1)
        while length and any(
            runs[length] < length - self.first_visible(group, length * self._block_size)
            for group, runs in enumerate(present)
        ):
            length -= 1
        return length

    def first_visible(self, group: int, position: int) -> int:
        """Index of the first block that a token at this position still sees in this group."""
        window = self._windows[group]
        return 0 if window is None else max(0, position - window + 1) // self._block_size

    def extend(self, parent: Node, tokens: bytes) -> Node:
        """The child of parent for this block of tokens, new or known."""
        if parent.children is None:
            parent.children = {}
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = Node(parent, tokens, len(self._windows))
        return node

    def store(self, node: Node, group: int, block: int) -> None:
        node.blocks[group] = block
        self._owners[group][block] = node

    def forget(self, group: int, block: int) -> None:
        """This block is about to be reused."""
        node = self._owners[group].pop(block)
        node.blocks[group] = ABSENT
        self._prune(node)

    def enter(self, node: Node) -> Node:
        node.users += 1
        return node

    def leave(self, node: Node) -> None:
        node.users -= 1
        self._prune(node)

    def _prune(self, node: Node) -> None:
        while not node.users and not node.children and all(block == ABSENT for block in node.blocks):
            if node.parent is None:
                del self._roots[node.key.decode()]
                return
            node, key = node.parent, node.key
            assert node.children is not None
            del node.children[key]

"""Which cached blocks hold which prefix: a radix tree over runs of blocks. A child is found by the exact tokens of its
first block, so two prefixes are never mistaken for each other; a part of a block is found by the neighbours of those
tokens in their order. Requests with different salts live under different roots.

The tree owns no block: block_manager tells it what to remember and what is gone. What is gone stays known for a while
as tokens without blocks, so that a miss can be explained.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from headrace.core.batch import IntArray
from headrace.policy.block_pool import ABSENT
from headrace.policy.chain import links, namespace

_MOST_SKIPPED = 32
"""Neighbours without blocks that are passed over in search of one with."""


class Node:
    """A run of blocks. key: its tokens (int32); blocks int32 [groups, n]: the block that holds them in each KV group,
    or ABSENT. first: its first block's index in the prefix. order: the keys of its children, sorted. tips: slots of
    running requests whose chain ends here. lost: when its blocks were last evicted, and for whom. names: of its blocks
    (chain.py), as far as they were asked for.

    A key is whole blocks, or the part of one: then the node has neither children nor tips."""

    __slots__ = ("blocks", "children", "first", "key", "lost", "names", "order", "parent", "tips")

    def __init__(self, parent: Node | None, key: bytes, blocks: IntArray, first: int) -> None:
        self.parent = parent
        self.key = key
        self.blocks = blocks
        self.first = first
        # None rather than empty: most nodes are leaves, and each object is one more to keep track of.
        self.children: dict[bytes, Node] | None = None
        self.order: list[bytes] = _NO_KEYS
        self.tips: set[int] | None = None
        self.lost: tuple[float, str] | None = None
        self.names: list[bytes] = []

    @property
    def length(self) -> int:
        return len(self.blocks[0])


_NO_KEYS: list[bytes] = []


@dataclass(slots=True)
class Match:
    """How far a prompt is known. data: its tokens (int32); path: nodes in order, and how many blocks of each match;
    blocks: their sum. tail: the node whose block number tail_index has the next tail_tokens tokens in common with the
    prompt, if any."""

    data: bytes
    root: Node | None
    path: list[tuple[Node, int]]
    blocks: int = 0
    tail: Node | None = None
    tail_index: int = 0
    tail_tokens: int = 0

    @property
    def end(self) -> Node | None:
        """The node at whose very end the whole blocks of the match end, if they end at one's end."""
        if not self.path:
            return self.root
        node, count = self.path[-1]
        return node if count == node.length else None


@dataclass(slots=True)
class Inserted:
    """What became of a slot's blocks. stored: (group, blocks) that the tree now knows. known: (group, indices in the
    table, blocks that held the same already). dropped: (group, blocks) whose tokens are held elsewhere as well."""

    tip: Node
    stored: list[tuple[int, IntArray]] = field(default_factory=list)
    known: list[tuple[int, IntArray, IntArray]] = field(default_factory=list)
    dropped: list[tuple[int, IntArray]] = field(default_factory=list)


class RadixCache:
    """num_blocks: one number per KV group. most_lost: blocks whose tokens are remembered after eviction. fingerprint:
    of the numbers in the blocks; it is part of their names."""

    def __init__(self, block_size: int, num_blocks: tuple[int, ...], most_lost: int, fingerprint: str = "") -> None:
        self._width = 4 * block_size
        self._groups = len(num_blocks)
        self._most_lost = most_lost
        self._fingerprint = fingerprint
        self.roots: dict[str, Node] = {}
        # Who has each block, and at which index of the prefix.
        self._owners = [np.full(n, None, object) for n in num_blocks]
        self._index: list[IntArray] = [np.zeros(n, np.int32) for n in num_blocks]
        self._lost: OrderedDict[Node, int] = OrderedDict()
        self._num_lost = 0

    def __len__(self) -> int:
        """Cached blocks, over all groups."""
        return sum(int(np.count_nonzero(owners)) for owners in self._owners)

    def root(self, salt: str) -> Node:
        root = self.roots.get(salt)
        if root is None:
            root = self.roots[salt] = Node(None, salt.encode(), np.empty((self._groups, 0), np.int32), 0)
        return root

    # Finding

    def walk(self, salt: str, data: bytes) -> Match:
        """Follow the tokens `data` (int32) as far as they are known, whether their blocks are there or not."""
        node = self.roots.get(salt)
        match = Match(data, node, [])
        at, width = 0, self._width
        while node is not None:
            child = node.children.get(data[at : at + width]) if node.children else None
            if child is None or len(data) - at < width:
                match.tail, match.tail_tokens = self._closest(node, data[at : at + width])
                break
            if data.startswith(child.key, at):
                match.path.append((child, child.length))
                at += len(child.key)
                node = child
                continue
            same = common(child.key, data[at : at + len(child.key)])
            match.path.append((child, same // width))
            at += same // width * width
            match.tail_index, match.tail_tokens = same // width, same % width // 4
            match.tail = child if match.tail_tokens else None
            break
        match.blocks = at // width
        return match

    def _closest(self, node: Node, head: bytes) -> tuple[Node | None, int]:
        """The child whose first block has most tokens in common with head, among those with blocks."""
        best: Node | None = None
        most = 0
        if not head or not node.order:
            return best, most
        at = bisect_left(node.order, head)
        for places in (range(at, len(node.order)), range(at - 1, -1, -1)):
            for place in places[:_MOST_SKIPPED]:
                assert node.children is not None
                child = node.children[node.order[place]]
                tokens = common(node.order[place], head) // 4
                if tokens <= most:
                    break
                if int(child.blocks[:, 0].min()) != ABSENT:
                    best, most = child, tokens
                    break
        return best, most

    # Names

    def names(self, node: Node) -> list[bytes]:
        """The names of a node's whole blocks. A root has one: what all chains of its salt begin with."""
        above: list[Node] = []
        at: Node | None = node
        while at is not None and len(at.names) < max(1, at.length):
            above.append(at)
            at = at.parent
        for below in reversed(above):
            if below.parent is None:
                below.names = [namespace(self._fingerprint, below.key.decode())]
            else:
                have = below.names
                before = have[-1] if have else below.parent.names[-1]
                below.names = have + links(before, below.key[len(have) * self._width :], self._width)
        return node.names

    def name_of(self, group: int, block: int) -> bytes | None:
        """The name of a cached block; None if it is not whole."""
        node: Node = self._owners[group][block]
        if len(node.key) < self._width:
            return None
        return self.names(node)[int(self._index[group][block]) - node.first]

    def runs_of(self, group: int, blocks: IntArray) -> list[tuple[list[bytes], bytes | None, bytes]]:
        """Whole cached blocks as runs that follow each other: names, the name before, tokens."""
        runs: list[tuple[list[bytes], bytes | None, bytes]] = []
        after: tuple[Node | None, int] = (None, -1)
        for block in blocks.tolist():
            name = self.name_of(group, block)
            if name is None:
                continue
            node: Node = self._owners[group][block]
            index = int(self._index[group][block]) - node.first
            tokens = node.key[index * self._width : (index + 1) * self._width]
            if after == (node, index):
                runs[-1][0].append(name)
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + tokens)
            else:
                runs.append(([name], self._name_before(node, index), tokens))
            after = (node, index + 1)
        return runs

    def _name_before(self, node: Node, index: int) -> bytes | None:
        if index:
            return self.names(node)[index - 1]
        assert node.parent is not None
        return self.names(node.parent)[-1] if node.parent.parent is not None else None

    def names_of(self, match: Match) -> list[bytes]:
        """The names of the whole blocks of a match."""
        return [name for node, count in match.path for name in self.names(node)[:count]]

    def namespace(self, salt: str) -> bytes:
        """What all chains of a salt begin with."""
        root = self.roots.get(salt)
        return namespace(self._fingerprint, salt) if root is None else self.names(root)[0]

    def next_tokens(self, match: Match, most: int = 4) -> tuple[int, ...]:
        """Tokens that follow the matched ones elsewhere: at most so many."""
        if match.tail is not None:
            at = match.tail_index * self._width + 4 * match.tail_tokens
            return _token(match.tail.key, at)
        if (end := match.end) is None:
            node, count = match.path[-1] if match.path else (match.root, 0)
            return _token(node.key, count * self._width) if node is not None else ()
        firsts: list[int] = []
        for key in end.order:
            token = _token(key, 0)[0]
            if token not in firsts:
                firsts.append(token)
                if len(firsts) == most:
                    break
        return tuple(firsts)

    def known_elsewhere(self, salt: str, head: bytes) -> bool:
        """Whether a first block, or what there is of one, is known under another salt (of the first few)."""
        others = (root for name, root in islice(self.roots.items(), _MOST_SKIPPED) if name != salt)
        return any(self._closest(root, head)[0] is not None for root in others)

    def tip(self, match: Match, blocks: int) -> Node:
        """The node at whose end the first `blocks` blocks of a match end; made by splitting one if there is none."""
        node = match.root
        assert node is not None
        for child, _ in match.path:
            if blocks <= 0:
                break
            node = child if blocks >= child.length else self._split(child, blocks)
            blocks -= child.length if node is child else blocks
        return node

    # Entering

    def insert(self, tip: Node, data: bytes, blocks: IntArray, slot: int) -> Inserted:
        """Enter whole blocks (int32 [groups, n], not to be written to afterwards) that follow tip; data: their tokens.
        slot: whose they are; its tip moves."""
        done = Inserted(tip)
        width, at = self._width, 0
        node, base = tip, tip.first + tip.length
        while at < blocks.shape[1]:
            head = data[at * width : (at + 1) * width]
            child = node.children.get(head) if node.children else None
            if child is None:
                self._supersede(node, head, done)
                if at == 0 and node.parent is not None and not node.children and node.tips == {slot}:
                    node.key += data
                    node.blocks = np.concatenate([node.blocks, blocks], axis=1)
                else:
                    node = self._attach(node, data[at * width :], blocks[:, at:])
                done.stored += self._own(node, blocks[:, at:], base + at)
                break
            same = child.length
            if not data.startswith(child.key, at * width):
                same = common(child.key, data[at * width : at * width + len(child.key)]) // width
                child = self._split(child, same)
            self._merge(child, blocks[:, at : at + same], base + at, done)
            node, at = child, at + same
        done.tip = node
        if node is not tip:
            self.enter(node, slot)
            self.leave(tip, slot)
        return done

    def insert_part(self, tip: Node, data: bytes, blocks: IntArray) -> Inserted:
        """Enter one block of each group, int32 [groups, 1], which holds fewer tokens than it could and follows tip."""
        done = Inserted(tip)
        at = bisect_left(tip.order, data)
        for key in tip.order[at : at + _MOST_SKIPPED]:
            if not key.startswith(data):
                break
            assert tip.children is not None
            if int(tip.children[key].blocks[:, 0].min()) != ABSENT:
                return done
        self._supersede(tip, data, done)
        known = tip.children.get(data) if tip.children else None
        if known is not None:
            self._merge(known, blocks, tip.first + tip.length, done)
        else:
            node = self._attach(tip, data, blocks)
            done.stored += self._own(node, node.blocks, node.first)
        return done

    def _attach(self, parent: Node, key: bytes, blocks: IntArray) -> Node:
        node = Node(parent, key, blocks, parent.first + parent.length)
        self._adopt(parent, node)
        return node

    def _adopt(self, parent: Node, node: Node) -> None:
        head = node.key[: self._width]
        if parent.children is None:
            parent.children, parent.order = {}, []
        if head not in parent.children:
            insort(parent.order, head)
        parent.children[head] = node
        node.parent = parent

    def _split(self, node: Node, count: int) -> Node:
        """Give the first `count` blocks of a node to a new one above it, which is returned. Tips stay at its end."""
        assert node.parent is not None
        upper = Node(node.parent, node.key[: count * self._width], node.blocks[:, :count].copy(), node.first)
        upper.lost = node.lost
        upper.names, node.names = node.names[:count], node.names[count:]
        self._adopt(node.parent, upper)
        node.key = node.key[count * self._width :]
        node.blocks = node.blocks[:, count:].copy()
        node.first += count
        self._adopt(upper, node)
        self._own(upper, upper.blocks, upper.first)
        return upper

    def _merge(self, node: Node, own: IntArray, first: int, done: Inserted) -> None:
        """A slot's blocks meet those of a node with the same tokens."""
        for group in range(self._groups):
            have, mine = node.blocks[group], own[group]
            index = np.flatnonzero((have != ABSENT) & (mine != ABSENT) & (have != mine))
            if len(index):
                done.known.append((group, (first + index).astype(np.int32), have[index]))
            index = np.flatnonzero((have == ABSENT) & (mine != ABSENT))
            if len(index):
                have[index] = mine[index]
                self._owners[group][mine[index]] = node
                self._index[group][mine[index]] = first + index
                done.stored.append((group, mine[index]))

    def _supersede(self, node: Node, head: bytes, done: Inserted) -> None:
        """Parts of a block whose tokens head begins with are no longer needed."""
        # Whatever head begins with stands before it, and so does all that lies between begin with that: the nearest key
        # before head has as much in common with it as there is to find.
        at = bisect_left(node.order, head)
        while at and head:
            before = node.order[at - 1]
            head = head[: common(before, head)]
            if before == head:
                assert node.children is not None
                self._drop(node.children[before], done)
            at = bisect_right(node.order, head)

    def _drop(self, part: Node, done: Inserted) -> None:
        for group in range(self._groups):
            blocks = part.blocks[group]
            blocks = blocks[blocks != ABSENT]
            self._owners[group][blocks] = None
            done.dropped.append((group, blocks))
        self._remove(part)

    def _own(self, node: Node, blocks: IntArray, first: int) -> list[tuple[int, IntArray]]:
        """Take note whose these blocks are; returns (group, blocks that are there)."""
        owned: list[tuple[int, IntArray]] = []
        span: IntArray = np.arange(first, first + blocks.shape[1], dtype=np.int32)
        for group in range(self._groups):
            index, row = span, blocks[group]
            there = row != ABSENT
            if np.count_nonzero(there) < len(row):
                index, row = index[there], row[there]
            self._owners[group][row] = node
            self._index[group][row] = index
            owned.append((group, row))
        return owned

    # Leaving

    def enter(self, node: Node, slot: int) -> None:
        if node.tips is None:
            node.tips = set()
        node.tips.add(slot)

    def leave(self, node: Node, slot: int) -> None:
        assert node.tips is not None
        node.tips.remove(slot)
        if not node.tips:
            node.tips = None
            self._prune(node)

    def forget(self, group: int, blocks: IntArray, now: float, whom: str) -> None:
        """These blocks are about to be reused, for whom and when."""
        owners = self._owners[group]
        nodes: list[Node] = owners[blocks].tolist()
        index = self._index[group][blocks]
        owners[blocks] = None
        start = 0
        for end in range(1, len(nodes) + 1):
            if end < len(nodes) and nodes[end] is nodes[start]:
                continue
            node = nodes[start]
            node.blocks[group, index[start:end] - node.first] = ABSENT
            node.lost = (now, whom)
            self._lost[node] = self._lost.get(node, 0) + end - start
            self._lost.move_to_end(node)
            self._num_lost += end - start
            start = end
        while self._num_lost > self._most_lost:
            node, count = self._lost.popitem(last=False)
            self._num_lost -= count
            self._prune(node)

    def _prune(self, node: Node) -> None:
        """Cut what nobody needs off the end of a node, and the node itself if nothing is left, and so on upwards."""
        while not node.children and not node.tips and node not in self._lost:
            parent = node.parent
            if parent is None:
                del self.roots[node.key.decode()]
                return
            present = np.flatnonzero((node.blocks != ABSENT).any(axis=0))
            if len(present):
                keep = int(present[-1]) + 1
                if keep < node.length:
                    node.key, node.blocks = node.key[: keep * self._width], node.blocks[:, :keep].copy()
                    node.names = node.names[:keep]
                return
            self._remove(node)
            node = parent

    def _remove(self, node: Node) -> None:
        """Take a leaf out of its parent."""
        parent, head = node.parent, node.key[: self._width]
        assert parent is not None and parent.children is not None
        del parent.children[head]
        del parent.order[bisect_left(parent.order, head)]
        node.parent = None
        self._num_lost -= self._lost.pop(node, 0)


def _token(key: bytes, at: int) -> tuple[int, ...]:
    """The token at this byte of a key, if it goes on that far."""
    return tuple(np.frombuffer(key[at : at + 4], np.int32).tolist())


def common(a: bytes, b: bytes) -> int:
    """Bytes that two runs of tokens have in common from their start, in whole tokens."""
    size = min(len(a), len(b)) // 4
    differ = np.frombuffer(a, np.int32, size) != np.frombuffer(b, np.int32, size)
    at = int(differ.argmax()) if size else 0
    return 4 * at if size and differ[at] else 4 * size

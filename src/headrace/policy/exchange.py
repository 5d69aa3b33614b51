"""Exchange: the blocks of prompts that are computed by one engine for another. Here they are kept until they have been
sent, or there is room for what is on its way until it has arrived and its request has joined: nobody else can take
these blocks meanwhile, and what is cached already does not have to come. What has arrived is found by its request as
any cached prefix is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace.core.batch import IntArray
from headrace.core.request import RequestState
from headrace.policy.block_manager import BlockManager
from headrace.policy.hits import Hit
from headrace.policy.moves import Move


@dataclass(slots=True)
class _Expected:
    """row: of the block tables. tokens: whose keys and values come."""

    row: int
    tokens: IntArray
    arrived: bool = False


class Exchange:
    """rows: of the block tables, which are nobody else's; one for each prompt that is expected at once."""

    def __init__(self, blocks: BlockManager, rows: range) -> None:
        self._blocks = blocks
        self._rows = list(rows)[::-1]
        self._expected: dict[str, _Expected] = {}
        self._kept: dict[str, Hit] = {}

    @property
    def num_coming(self) -> int:
        """Prompts that are on their way here."""
        return sum(not one.arrived for one in self._expected.values())

    def expect(self, request_id: str, salt: str, tokens: IntArray, running: int, promised: list[int]) -> int | None:
        """Make room for these tokens beside so many running requests and what they were promised. Returns how many of
        the tokens are here already; None, and nothing done, if there is no room."""
        blocks = self._blocks
        if not self._rows:
            return None
        hit = blocks.lookup(salt, tokens, len(tokens), disk=False)
        # One block more: its request writes there when it joins.
        if not blocks.fits(hit, len(tokens), running + 1, promised):
            return None
        row = self._rows.pop()
        blocks.admit(row, salt, hit, request_id)
        at: IntArray = np.array([row], np.int32)
        # As far at a time as a window's blocks may reach: what it has left behind is free again before the next.
        for start in range(hit.tokens, len(tokens), blocks.reach if blocks.windowed else len(tokens)):
            end = min(start + blocks.reach, len(tokens)) if blocks.windowed else len(tokens)
            grown = blocks.grow_one(row, end)
            assert grown, "blocks that fit could not be taken"
            blocks.free_behind(at, np.array([end], np.int32))
        blocks.set_aside += 1
        blocks.lent += 1
        self._expected[request_id] = _Expected(row, tokens)
        return hit.tokens

    def arrived(self, request_id: str) -> None:
        """All of it is here, and cached from now on."""
        one = self._expected[request_id]
        self._blocks.remember(one.row, one.tokens)
        self._blocks.remember(one.row, one.tokens, ending=True)
        self._blocks.set_aside -= 1
        one.arrived = True

    def keep(self, request_id: str, salt: str, tokens: IntArray) -> None:
        """Let nobody take the whole blocks of these tokens, as far as they are cached."""
        whole = len(tokens) // self._blocks.block_size * self._blocks.block_size
        hit = self._blocks.lookup(salt, tokens, whole, disk=False)
        self._blocks.hold(hit)
        self._blocks.lent += 1
        self._kept[request_id] = hit

    def let_go(self, request_id: str) -> None:
        """It has been sent, will not come, or its request has joined. Unknown ones are ignored."""
        if (hit := self._kept.pop(request_id, None)) is not None:
            self._blocks.drop(hit)
            self._blocks.lent -= 1
        if (one := self._expected.pop(request_id, None)) is not None:
            self._blocks.set_aside -= not one.arrived
            self._blocks.release(one.row)
            self._blocks.lent -= 1
            self._rows.append(one.row)

    def follow(self, moves: Iterable[Move]) -> None:
        """Moves of this engine's requests."""
        if not self._expected:
            return
        for move in moves:
            if move.state in (RequestState.RUNNING, RequestState.FINISHED):
                self.let_go(move.sequence.request_id)

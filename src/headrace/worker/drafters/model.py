"""ModelDrafter: a smaller model that shares the tokenizer guesses ahead (Leviathan et al. 2023; Chen et al. 2023). Its
keys and values are KV groups of the engine's own block manager, so that prefix hits, preemption and lower tiers serve
both models; it computes there what is asked for and lacking (notes.py). Its likeliest tokens are proposed: what the
noise of sampling picks is the other model's to say.

Only it reads and writes its groups, on the thread that schedules: it makes their copies when they are ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.core.batch import EMPTY, Batch, BatchOutput, BlockEdits, DraftTokens, IntArray, SlotJoin
from headrace.core.request import SamplingParams
from headrace.policy.device_orders import CopyNow
from headrace.policy.speculation import NOTHING, Context, Proposal
from headrace.worker.drafters.notes import Notes, Text

_GREEDY = SamplingParams(temperature=0)


class _Asked:
    """A request: its text with what was proposed so far, of which `known` positions are computed."""

    __slots__ = ("blocks", "known", "most", "named", "names", "odds", "slot", "text", "tokens")

    def __init__(self, slot: int, tokens: IntArray, blocks: IntArray, most: int, names: Text) -> None:
        self.slot = slot
        self.text = tokens
        self.named = len(tokens)
        self.blocks = blocks
        self.most = most
        self.names = names
        self.known = 0
        self.tokens: list[int] = []
        self.odds: list[float] = []

    @property
    def left(self) -> int:
        return len(self.text) - self.known

    def propose(self, token: int, odds: float) -> None:
        self.tokens.append(token)
        self.odds.append((self.odds[-1] if self.odds else 1.0) * odds)
        self.text = np.append(self.text, np.int32(token))


class ModelDrafter:
    """run: a step of its device. copy: see policy/device_orders.py. first_group: of its groups among the engine's.
    fingerprint: of its numbers. max_tokens: most rows of a step."""

    costly = True

    def __init__(
        self,
        run: Callable[[Batch], BatchOutput],
        copy: CopyNow,
        notes: Sequence[IntArray],
        *,
        first_group: int,
        fingerprint: str,
        num_slots: int,
        block_size: int,
        max_tokens: int,
        max_model_len: int,
    ) -> None:
        self.copy = copy
        self._run = run
        self._notes = Notes(notes)
        self._first_group = first_group
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._max_tokens = max_tokens
        self._max_model_len = max_model_len
        self._serials: IntArray = np.full(num_slots, -1, np.int32)
        self._texts: dict[int, Text] = {}
        self._tables = np.full((num_slots, len(notes), -(-max_model_len // block_size)), -1, np.int32)
        self.num_steps = self.num_rows = 0

    def propose(self, contexts: Sequence[Context]) -> list[Proposal]:
        """All requests side by side, one step for each token ahead."""
        all_asked = [self._look(context) for context in contexts]
        while going := [one for one in all_asked if one is not None and len(one.tokens) < one.most]:
            output = self._catch_up(going)
            assert output.logprob is not None
            for row, one in enumerate(going):
                one.propose(int(output.tokens[row]), float(np.exp(output.logprob[row])))
        return [NOTHING if one is None else Proposal(one.tokens, one.odds) for one in all_asked]

    def remember(self, namespace: tuple[str, str], tokens: IntArray, prompt_len: int) -> None:
        """Nothing: it has read enough."""

    def _look(self, context: Context) -> _Asked | None:
        """Take over the request's blocks, and see what is computed in them. None where nothing can be proposed."""
        slot, tokens = context.slot, context.tokens
        blocks = context.blocks[self._first_group :]
        # What is proposed last is not computed.
        room = min(blocks.shape[1] * self._block_size, self._max_model_len) - len(tokens) + 1
        if min(context.most, room) < 1:
            return None
        blocks = blocks[:, : self._tables.shape[2]]
        if self._serials[slot] != context.serial:
            self._take_slot(context)
        self._turn_table(slot, blocks)
        asked = _Asked(slot, tokens, blocks, min(context.most, room), self._texts[slot])
        asked.known = self._notes.computed(blocks, asked.names.names(tokens, len(tokens)), tokens)
        return asked

    def _take_slot(self, context: Context) -> None:
        slot = context.slot
        leaves = (slot,) if self._serials[slot] >= 0 else ()
        join = SlotJoin(slot, context.tokens.copy(), len(context.tokens), _GREEDY, 0, 0, ())
        self._step(EMPTY, EMPTY, EMPTY, leaves=leaves, joins=(join,))
        self._serials[slot] = context.serial
        self._texts[slot] = Text(self._fingerprint, context.namespace[1], self._block_size)

    def _turn_table(self, slot: int, blocks: IntArray) -> None:
        table = self._tables[slot, :, : blocks.shape[1]]
        group, index = np.nonzero(table != blocks)
        if len(group):
            table[:] = blocks
            where = np.full(len(group), slot, np.int32), group.astype(np.int32), index.astype(np.int32)
            edits = BlockEdits(*where, blocks[group, index], np.zeros(len(group), np.int32))
            self._step(EMPTY, EMPTY, EMPTY, edits=edits)

    def _catch_up(self, going: list[_Asked]) -> BatchOutput:
        """Compute what is new of each text; the last step names the token after each."""
        for one in going:
            # The last token is computed anew even where all is known: its row brings the next.
            one.known = min(one.known, len(one.text) - 1)
        room = self._max_tokens // len(going)
        for one in going:
            while one.left > room:
                self._compute([one], [min(one.left - 1, self._max_tokens)])
        return self._compute(going, [one.left for one in going], name=True)

    def _compute(self, going: list[_Asked], counts: list[int], *, name: bool = False) -> BatchOutput:
        slots = np.array([one.slot for one in going], np.int32)
        starts, number = np.array([one.known for one in going], np.int32), np.array(counts, np.int32)
        pieces = [one.text[one.known : one.known + count] for one, count in zip(going, counts, strict=True)]
        at = [np.arange(one.known, one.known + count) for one, count in zip(going, counts, strict=True)]
        told = DraftTokens(np.repeat(slots, number), np.concatenate(at).astype(np.int32), np.concatenate(pieces))
        for one, count in zip(going, counts, strict=True):
            self._notes.begin(one.blocks, one.names.names(one.text, one.named), one.known, count)
        output = self._step(slots, starts, number, told=told, name=name)
        for one, piece in zip(going, pieces, strict=True):
            self._notes.end(one.blocks, one.known, piece)
            one.known += len(piece)
        return output

    def _step(
        self,
        slots: IntArray,
        starts: IntArray,
        counts: IntArray,
        *,
        leaves: tuple[int, ...] = (),
        joins: tuple[SlotJoin, ...] = (),
        edits: BlockEdits | None = None,
        told: DraftTokens | None = None,
        name: bool = False,
    ) -> BatchOutput:
        rows: IntArray = np.arange(len(slots) if name else 0, dtype=np.int32)
        self.num_steps += bool(len(slots))
        self.num_rows += int(counts.sum())
        return self._run(
            Batch(
                self.num_steps,
                slots,
                starts,
                counts,
                rows,
                (starts + counts - 1)[: len(rows)],
                np.ones(len(rows), np.bool_),
                np.zeros(len(rows), np.int32),
                leaves=leaves,
                joins=joins,
                edits=edits or BlockEdits(),
                drafts=told,
            )
        )

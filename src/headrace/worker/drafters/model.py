"""ModelDrafter: a smaller model that shares the tokenizer guesses ahead (Leviathan et al. 2023; Chen et al. 2023). It
runs on an executor of its own, with blocks of its own from a block manager of the same kind, and is told tokens as
the scheduler tells its device drafts. Its likeliest tokens are proposed: what the noise of sampling picks is the other
model's to say.

What it computed for drafts that were not kept is written over: positions up to where the texts agree stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.batch import EMPTY, Batch, BatchOutput, DraftTokens, IntArray, SlotJoin
from headrace.core.prefix import common_length
from headrace.core.request import SamplingParams
from headrace.engine.executor import Executor
from headrace.policy.block_manager import BlockManager
from headrace.policy.speculation import NOTHING, Context, Proposal

_GREEDY = SamplingParams(temperature=0)


class ModelDrafter:
    """max_tokens: most rows of a step of this executor. A request that does not fit its blocks gets no drafts."""

    costly = True

    def __init__(self, executor: Executor, *, max_tokens: int) -> None:
        has = executor.capacity
        self._executor = executor
        self._max_tokens = max_tokens
        self._max_model_len = has.max_model_len
        self._blocks = BlockManager(
            num_slots=has.num_slots,
            max_model_len=has.max_model_len,
            block_size=has.block_size,
            num_blocks=has.num_blocks,
            windows=has.windows,
            reach=max_tokens,
            caching=False,
        )
        self._serials: IntArray = np.full(has.num_slots, -1, np.int32)
        # What was computed for each slot, drafts included; the slot used last stands last.
        self._texts: dict[int, IntArray] = {}
        self._leaves: list[int] = []
        self.num_steps = 0

    def propose(self, contexts: Sequence[Context]) -> list[Proposal]:
        """All requests side by side, one step for each token ahead."""
        fitting = [i for i, context in enumerate(contexts) if self._prepare(context)]
        ahead = max((contexts[i].most for i in fitting), default=0)
        tokens: dict[int, list[int]] = {i: [] for i in fitting}
        odds: dict[int, list[float]] = {i: [] for i in fitting}
        texts = {i: contexts[i].tokens for i in fitting}
        for _ in range(ahead):
            going = [i for i in fitting if len(tokens[i]) < contexts[i].most]
            output = self._catch_up([contexts[i].slot for i in going], [texts[i] for i in going])
            assert output.logprob is not None
            for row, i in enumerate(going):
                token = int(output.tokens[row])
                tokens[i].append(token)
                odds[i].append((odds[i][-1] if odds[i] else 1.0) * float(np.exp(output.logprob[row])))
                texts[i] = np.append(texts[i], np.int32(token))
        return [Proposal(tokens[i], odds[i]) if i in tokens else NOTHING for i in range(len(contexts))]

    def remember(self, namespace: tuple[str, str], tokens: IntArray, prompt_len: int) -> None:
        """Nothing: it has read enough."""

    def _prepare(self, context: Context) -> bool:
        """Give the request its slot here, and blocks for all that it may compute. False if there are too few."""
        slot, length = context.slot, len(context.tokens) + context.most
        if self._serials[slot] != context.serial:
            self._leave(slot)
            self._serials[slot] = context.serial
            self._texts[slot] = EMPTY
            self._join(context)
        self._texts[slot] = self._texts.pop(slot)
        kept = min(common_length(self._texts[slot], context.tokens), len(context.tokens) - 1)
        self._blocks.free_behind(np.array([slot], np.int32), np.array([kept], np.int32))
        if length > self._max_model_len:
            return False
        needed = np.array([length], np.int32)
        while not self._blocks.grow(np.array([slot], np.int32), needed):
            oldest = next(iter(self._texts))
            if oldest == slot:
                return False
            self._leave(oldest)
        return True

    def _join(self, context: Context) -> None:
        self._blocks.admit(context.slot, "", self._blocks.lookup("", EMPTY, 0))
        join = SlotJoin(context.slot, context.tokens.copy(), len(context.tokens), _GREEDY, 0, 0, ())
        self._run(EMPTY, EMPTY, EMPTY, joins=(join,))

    def _leave(self, slot: int) -> None:
        if self._serials[slot] >= 0:
            self._blocks.release(slot)
            self._leaves.append(slot)
            self._texts.pop(slot, None)
            self._serials[slot] = -1

    def _catch_up(self, slots: list[int], texts: list[IntArray]) -> BatchOutput:
        """Compute what is new of each text; the last step names the token after each."""
        known = [common_length(self._texts[slot], text) for slot, text in zip(slots, texts, strict=True)]
        # The last token is computed anew even where all is known: its row brings the next.
        known = [min(n, len(text) - 1) for n, text in zip(known, texts, strict=True)]
        room = self._max_tokens // len(slots)
        while any(len(text) - n > room for n, text in zip(known, texts, strict=True)):
            for n, (slot, text) in enumerate(zip(slots, texts, strict=True)):
                count = min(len(text) - known[n] - 1, self._max_tokens)
                if count > 0 and len(text) - known[n] > room:
                    self._compute([slot], [text], [known[n]], [count])
                    known[n] += count
        left = [len(text) - n for n, text in zip(known, texts, strict=True)]
        output = self._compute(slots, texts, known, left, name=True)
        for slot, text in zip(slots, texts, strict=True):
            self._texts[slot] = text
        return output

    def _compute(
        self, slots: list[int], texts: list[IntArray], starts: list[int], counts: list[int], *, name: bool = False
    ) -> BatchOutput:
        pieces = [text[start : start + count] for text, start, count in zip(texts, starts, counts, strict=True)]
        at = np.concatenate([np.arange(s, s + c, dtype=np.int32) for s, c in zip(starts, counts, strict=True)])
        told = DraftTokens(np.repeat(slots, counts).astype(np.int32), at, np.concatenate(pieces).astype(np.int32))
        first, number = np.array(starts, np.int32), np.array(counts, np.int32)
        return self._run(np.array(slots, np.int32), first, number, told=told, name=name)

    def _run(
        self,
        slots: IntArray,
        starts: IntArray,
        counts: IntArray,
        *,
        joins: tuple[SlotJoin, ...] = (),
        told: DraftTokens | None = None,
        name: bool = False,
    ) -> BatchOutput:
        rows: IntArray = np.arange(len(slots) if name else 0, dtype=np.int32)
        self.num_steps += 1
        leaves, self._leaves = tuple(self._leaves), []
        batch = Batch(
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
            edits=self._blocks.take_edits(),
            drafts=told,
        )
        self._executor.submit(batch)
        return self._executor.collect()

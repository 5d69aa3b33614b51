"""The scheduler: what to compute in the next step, and what a finished step means. There is no prefill and no
decode: every running request has tokens that are known and positions that are computed, and a step moves the
second number toward the first. Chunked prefill, prefix hits and resume after preemption are all that one rule.

A sample of a step under way counts as known before it has a value, so the next step may be begun before this one
has finished; what such a step computes past a stop is dropped. Which request is next, who gives way and how a
step's tokens are shared lie in queue.py, preemption.py and budget.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from headrace.core.batch import EMPTY, Batch, BatchOutput, BlockEdits, BoolArray, IntArray, SlotJoin
from headrace.core.request import ErrorCode, OutputDelta, Request
from headrace.policy.block_manager import BlockManager
from headrace.policy.budget import share
from headrace.policy.moves import Move
from headrace.policy.outcome import take_in
from headrace.policy.preemption import victim
from headrace.policy.queue import Queue
from headrace.policy.roster import Roster
from headrace.policy.scoring import LogitRows
from headrace.policy.sequence import Sequence
from headrace.policy.slots import Slots
from headrace.policy.steady import Steady
from headrace.policy.step import Step


class Scheduler:
    """budget: most tokens in a step. The blocks' reach must be at least budget times the steps under way."""

    def __init__(self, slots: Slots, blocks: BlockManager, queue: Queue, *, budget: int) -> None:
        self.slots = slots
        self.blocks = blocks
        self.queue = queue
        self.steps: deque[Step] = deque()
        self._roster = Roster(slots, blocks, queue)
        self.counters = self._roster.counters
        self._budget = budget
        self._num_steps = 0
        self._blocked: tuple[Sequence, int] | None = None
        self._steady: Steady | None = None
        self._calm_order: IntArray | None = None

    @property
    def num_steps(self) -> int:
        return self._num_steps

    @property
    def num_running(self) -> int:
        return self.slots.num_taken

    @property
    def has_work(self) -> bool:
        return bool(self._roster) or bool(self.steps)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._roster

    def add(self, request: Request) -> OutputDelta | None:
        """Queue a request, or answer at once if nothing is to be computed for it."""
        return self._roster.add(request)

    def abort(self, request_ids: Iterable[str]) -> list[OutputDelta]:
        """End these requests, wherever they stand. Unknown ids are ignored."""
        ended = map(self._roster.abort, request_ids)
        return [delta for delta in ended if delta is not None]

    def fail(self, slot: int, message: str) -> OutputDelta:
        """End the request in this slot alone, with an error."""
        return self._roster.fail(self.slots[slot], message)

    def give_up(self, request_id: str, message: str, code: ErrorCode) -> OutputDelta:
        """End a request that waits, with an error."""
        return self._roster.give_up(request_id, message, code)

    def take_moves(self) -> list[Move]:
        """Changes of requests' states since the last call, in order. They are kept until they are taken."""
        return self._roster.take_moves()

    def update(self, output: BatchOutput) -> list[OutputDelta]:
        """Take in the oldest step under way: what each request is sent."""
        return take_in(self._roster, self.steps.popleft(), output)

    def alive(self, step: Step) -> BoolArray:
        """Which entries of a step under way still belong to the request that they were made for."""
        still: BoolArray = self.slots.serial.take(step.batch.slots) == step.serials
        return still

    # What to compute next

    def schedule(self) -> Batch | None:
        """Begin a step, or None if nothing can move before a step under way has finished."""
        if self._steady is not None:
            batch = self._repeat(self._steady)
            if batch is not None:
                return batch
            self._steady = None
        preempted = self.counters.preemptions
        slots, starts, counts = self._continue()
        joins: list[SlotJoin] = []
        # Blocks that had to be taken from someone are not for newcomers.
        if preempted == self.counters.preemptions and len(self.queue):
            joins, joined = self._admit(self._budget - int(counts.sum()))
            if joins:
                new = np.array([join.slot for join in joins], np.int32)
                slots = np.concatenate([slots, new])
                starts = np.concatenate([starts, self.slots.computed[new]])
                counts = np.concatenate([counts, np.array(joined, np.int32)])
        if not len(slots):
            return None
        return self._begin(slots, starts, counts, self._roster.take_leaves(), tuple(joins), self.blocks.take_edits())

    def _repeat(self, steady: Steady) -> Batch | None:
        """One more of the same, or None if something is to change."""
        state = self.slots
        if state.order is not steady.slots or steady.left <= 0 or self._can_admit():
            return None
        if self.blocks.windowed:
            self.blocks.free_behind(steady.slots, state.done.take(steady.at))
        crossing, index = steady.crossing()
        if len(crossing) and not self.blocks.extend(crossing, index):
            return None
        starts, ends = steady.advance()
        state.computed[steady.at] = ends
        state.known[steady.at] = ends + steady.ones
        self._num_steps += 1
        batch = Batch(
            self._num_steps,
            steady.slots,
            starts,
            steady.ones,
            steady.entries,
            starts,
            steady.sample,
            steady.top,
            leaves=self._roster.take_leaves(),
            edits=self.blocks.take_edits(),
        )
        final = steady.left <= 0
        step = Step(batch, ends, steady.serials, steady.slots, ends, [], self._roster.departures, steady, final)
        self.steps.append(step)
        return batch

    def _can_admit(self) -> bool:
        if not len(self.queue) or not self.slots.num_free:
            return False
        head = self.queue.peek()
        return self._blocked is None or self._blocked != (head, self.blocks.version)

    def _continue(self) -> tuple[IntArray, IntArray, IntArray]:
        """Slots, first positions and counts of running requests, with blocks for them; preempts if it must."""
        state = self.slots
        while True:
            slots = state.order
            starts = state.computed.take(slots)
            counts = np.minimum(state.known.take(slots), state.last.take(slots)) - starts
            if self._roster.behind or len(slots) > self._budget:
                counts = share(counts, self._budget)
            if np.count_nonzero(counts) < len(counts):
                moving = counts > 0
                slots, starts, counts = slots[moving], starts[moving], counts[moving]
            if self.blocks.windowed:
                self.blocks.free_behind(slots, state.done.take(slots))
            if self.blocks.grow(slots, starts + counts):
                return slots, starts, counts
            if self.num_running == 1:
                # Alone it fits, once steps under way have let go of what lies behind its window.
                assert self.steps, "an admitted request does not fit alone"
                return EMPTY, EMPTY, EMPTY
            self._roster.preempt(state[victim(state.order)])

    def _admit(self, budget: int) -> tuple[list[SlotJoin], list[int]]:
        """Take requests from the queue while tokens, slots and blocks last. Returns joins and token counts."""
        joins: list[SlotJoin] = []
        counts: list[int] = []
        while budget > 0 and self.slots.num_free:
            sequence = self.queue.peek()
            if sequence is None or not self._can_admit():
                break
            hit = self.blocks.lookup(sequence.cache_salt, sequence.tokens, sequence.cacheable)
            known = len(sequence.tokens)
            needed = min(known, sequence.limit - 1)
            # One block is left to each running request, so that none is preempted as soon as it needs its next.
            if not self.blocks.fits(hit, needed, reserve=self.num_running):
                self._blocked = (sequence, self.blocks.version)
                break
            self.queue.pop()
            join = self._roster.join(sequence, hit)
            count = min(budget, needed - hit.tokens)
            grown = self.blocks.grow(np.array([join.slot], np.int32), np.array([hit.tokens + count], np.int32))
            assert grown, "blocks that fit could not be taken"
            budget -= count
            counts.append(count)
            joins.append(join)
        return joins, counts

    def _begin(
        self,
        slots: IntArray,
        starts: IntArray,
        counts: IntArray,
        leaves: tuple[int, ...],
        joins: tuple[SlotJoin, ...],
        edits: BlockEdits,
    ) -> Batch:
        state = self.slots
        ends = starts + counts
        entries = np.flatnonzero(ends == state.known.take(slots)).astype(np.int32)
        everywhere = len(entries) == len(slots)
        sampled = slots if everywhere else slots[entries]
        index = ends if everywhere else ends[entries]
        state.computed[slots] = ends
        state.known[sampled] += 1
        rows = LogitRows(entries, index - 1, np.ones(len(sampled), np.bool_), state.top.take(sampled), [])
        if self._roster.scoring:
            rows = self._roster.scoring.add_rows(rows, slots, starts, ends)
        self._num_steps += 1
        batch = Batch(
            self._num_steps,
            slots,
            starts,
            counts,
            rows.entry,
            rows.position,
            rows.sample,
            rows.top,
            leaves=leaves,
            joins=joins,
            edits=edits,
        )
        serials = state.serial.take(slots)
        self.steps.append(Step(batch, ends, serials, sampled, index, rows.owners, self._roster.departures))
        if everywhere and not self._roster.behind and len(slots) == self.num_running:
            # The second such step of the same requests in a row is taken as the first of many.
            if self._calm_order is slots:
                self._steady = Steady(state, slots, ends, self.blocks.block_size)
            self._calm_order = slots
        return batch

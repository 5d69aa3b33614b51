"""The scheduler: what to compute in the next step, and what a finished step means. There is no prefill and no
decode: every running request has tokens that are known and positions that are computed, and a step moves the
second number toward the first. Chunked prefill, prefix hits and resume after preemption are all that one rule.

A sample of a step under way counts as known before it has a value, so the next step may be begun before this one
has finished; what such a step computes past a stop is dropped. Which request is next, who joins, who gives way
and how a step's tokens are shared lie in queue.py, intake.py, preemption.py and budget.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from headrace.core.batch import (
    EMPTY,
    Batch,
    BatchOutput,
    BlockCopies,
    BlockEdits,
    BoolArray,
    IntArray,
    SlotJoin,
)
from headrace.core.disk import DiskResult, DiskTransfer
from headrace.core.request import ErrorCode, OutputDelta, Request
from headrace.policy.block_manager import BlockManager
from headrace.policy.budget import StepBudget, TimeTarget
from headrace.policy.drafts import Drafts, Laid
from headrace.policy.forms import Forms
from headrace.policy.intake import Intake
from headrace.policy.latency import StepWork
from headrace.policy.moves import Move
from headrace.policy.outcome import take_in
from headrace.policy.plan import Plan
from headrace.policy.preemption import Patience, Swap, least_claim
from headrace.policy.queue import Queue
from headrace.policy.roster import Roster
from headrace.policy.scoring import LogitRows
from headrace.policy.slots import Slots
from headrace.policy.speculation import Speculation
from headrace.policy.steady import Repeats, Steady
from headrace.policy.step import Step

_Changes = tuple[tuple[int, ...], tuple[SlotJoin, ...], BlockEdits, BlockCopies, tuple[DiskTransfer, ...]]


class Scheduler:
    """budget: most tokens in a step; target: most time, None for any. The blocks' reach must be at least budget times
    the steps under way."""

    def __init__(
        self,
        slots: Slots,
        blocks: BlockManager,
        queue: Queue,
        *,
        budget: int,
        target: TimeTarget | None = None,
        patience: Patience | None = None,
        swap: Swap | None = None,
        speculation: Speculation | None = None,
        forms: Forms | None = None,
    ) -> None:
        self.slots = slots
        self.blocks = blocks
        self.queue = queue
        self.steps: deque[Step] = deque()
        # Whether the tokens or the time of the step planned last were spent.
        self.crowded = False
        self._roster = Roster(slots, blocks, queue, swap, forms)
        self.counters = self._roster.counters
        self._budget = budget
        self._target = target
        self._patience = patience or Patience()
        self._speculation = speculation
        self._intake = Intake(self._roster, self._patience)
        self._num_steps = 0
        # For rows that sample and of whose odds nothing is to be told.
        self._sampling: BoolArray = np.ones(budget, np.bool_)
        self._untold: IntArray = np.full(budget, -1, np.int32)
        self._steady: Steady | None = None
        self._calm_order: IntArray | None = None

    @property
    def num_steps(self) -> int:
        return self._num_steps

    @property
    def num_running(self) -> int:
        return self.slots.num_taken

    @property
    def num_waiting(self) -> int:
        return len(self.queue) + len(self._roster.parking)

    @property
    def num_forming(self) -> int:
        """How many of those that wait do so for the form of their output."""
        return len(self._roster.parking.forming)

    @property
    def has_work(self) -> bool:
        return bool(self._roster) or bool(self.steps)

    @property
    def tokens_behind(self) -> int:
        """Tokens known to running requests when they joined that are yet to be computed."""
        behind, state = self._roster.behind, self.slots
        return sum(int(state.start[slot]) - int(state.computed[slot]) for slot in behind)

    def progress(self) -> dict[str, int]:
        """Positions that are done of each running request."""
        order = self.slots.order
        return dict(zip(self.slots.request_ids[order].tolist(), self.slots.done[order].tolist(), strict=True))

    def promised(self) -> list[int]:
        """Blocks of each group that running requests have yet to take for what they joined with."""
        behind = np.fromiter(self._roster.behind, np.int32)
        return self.blocks.lacking(behind, self.slots.start[behind])

    def repeats(self) -> Repeats | None:
        """The steps that are to come which advance() may take as one, as far as can be told now: until a request takes
        its last token, or somebody who waits is looked at. None if there are none."""
        steady = self._settled()
        if steady is None:
            return None
        steps = min(steady.left, self._intake.hopeless_for(self._num_steps))
        return Repeats(steps, steady.work) if steps > 0 else None

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._roster

    def add(self, request: Request, now: float = 0.0) -> OutputDelta | None:
        """Queue a request, or answer at once if nothing is to be computed for it."""
        return self._roster.add(request, now)

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
        step = self.steps.popleft()
        sent = take_in(self._roster, step, output, self._speculation, not self.steps)
        self.look_again()
        return sent

    def take_results(self, results: list[DiskResult]) -> None:
        """Take in what the disk has done: those who waited for it are back in the queue."""
        self.blocks.take_results(results)
        self.look_again()

    def look_again(self) -> None:
        """Back to the queue with those for whom what they waited for is there."""
        if self._roster.parking:
            self._roster.unpark()

    # What to compute next

    def schedule(self, now: float = 0.0) -> Batch | None:
        """Begin a step, or None if nothing can move before a step under way has finished."""
        self.queue.age(now)
        return self._next()

    def _next(self) -> Batch | None:
        if self._steady is not None:
            batch = self._repeat(self._steady) if self._speculation is None else self._guess_on(self._steady)
            if batch is not None:
                return batch
            self._steady = None
        preempted = self.counters.preemptions
        plan, budget = self._continue()
        joins: list[SlotJoin] = []
        # Blocks that had to be taken from someone are not for newcomers.
        if preempted == self.counters.preemptions:
            if len(plan.held_back):
                plan = self._take_in(plan, budget, joins, better_than=int(self.slots.rank[plan.held_back[0]]))
                plan = self._go_on(plan, budget)
            plan = self._take_in(plan, budget, joins)
        self.crowded = budget.offer(0, 1) == 0
        # What is to move between tiers does not wait for something to compute.
        if not len(plan.slots) and not self.blocks.has_moves:
            return None
        return self._begin(plan, tuple(joins), self._draft(plan, budget.left))

    def advance(self, most: int, now: float = 0.0) -> Batch | None:
        """Begin up to `most` steps as one, as long as they are alike: the same requests decode, nobody joins, and none
        leaves save after the last of them. What is then computed, held and freed is the same as after as many calls of
        schedule() and update(). The device must know that they bring no stop."""
        self.queue.age(now)
        steady = self._settled() if most > 1 else None
        if steady is not None:
            batch = self._repeat(steady, most)
            if batch is not None:
                return batch
        return self._next()

    def _settled(self) -> Steady | None:
        """What all steps from here on have in common, if nothing is under way and all that run decode."""
        if self.steps or self._roster.behind or self._speculation is not None or self._timed:
            return None
        state, steady = self.slots, self._steady
        slots = state.order
        if steady is None or steady.slots is not slots:
            if not len(slots):
                return None
            steady = self._steady = Steady(state, slots, state.computed.take(slots), self.blocks.block_size)
            self.crowded = len(slots) >= self._budget
        return steady if steady.plain else None

    @property
    def _timed(self) -> bool:
        """Whether something waits for a time or for a position that may come between two steps taken as one."""
        return self.queue.timed or self.blocks.timed or bool(self._roster.parking)

    def _repeat(self, steady: Steady, most: int = 1) -> Batch | None:
        """One more of the same, or up to `most` as one; None if something is to change."""
        state = self.slots
        begun, starts = 0, steady.ends
        while begun < most and steady.left > 0:
            calm = self._intake.hopeless_for(self._num_steps)
            if state.order is not steady.slots or not calm:
                break
            if self.blocks.windowed:
                done = steady.ends if begun else state.done.take(steady.at)
                self.blocks.free_behind(steady.slots, done)
                calm = 1
            crossing, index = steady.crossing()
            if len(crossing) and not self.blocks.extend(crossing, index):
                break
            # This one, and those after it in which no slot crosses into another block.
            steps = min(steady.until_crossing, calm, most - begun, steady.left) if most > 1 else 1
            steady.advance(steps)
            self._num_steps += steps
            begun += steps
        return self._again(steady, starts, begun) if begun else None

    def _again(self, steady: Steady, starts: IntArray, steps: int) -> Batch:
        """So many more of the same from these starts on, up to where `steady` stands."""
        state, ends, count = self.slots, steady.ends, len(steady.slots)
        state.computed[steady.at] = ends
        state.known[steady.at] = steady.after
        slots, entries = steady.slots, steady.entries
        changes = self._changes(())
        batch = Batch(
            self._num_steps, slots, starts, steady.ones, entries, starts, steady.sample, steady.top, *changes, steps
        )
        gone, final = self._roster.departures, steady.left <= 0
        work = StepWork(count, count, steady.context, 0.0, count, count) if steps == 1 else None
        step = Step(batch, ends, steady.serials, steady.slots, ends, [], gone, None, steady, final, work)
        self.steps.append(step)
        return batch

    def _guess(self, steady: Steady, drafts: Drafts, laid: Laid) -> Batch:
        """One more of the same, with these guesses."""
        state, many = self.slots, len(laid.entry)
        state.computed[steady.at] = laid.ends
        state.known[steady.at] = laid.known
        state.drafting.update(drafts.whose(steady.whose))
        top = state.top.take(laid.slot) if state.reporting else self._untold[:many]
        self._num_steps += 1
        entry, before, sample = laid.entry, laid.before, self._sampling[:many]
        starts, counts = laid.starts, laid.counts
        changes = self._changes(())
        batch = Batch(
            self._num_steps, steady.slots, starts, counts, entry, before, sample, top, *changes, 1, laid.placed
        )
        work = StepWork.of_entries(steady.places, laid.counts.tolist(), many, many)
        gone = self._roster.departures
        step = Step(batch, laid.ends, steady.serials, laid.slot, laid.index, [], gone, laid.drafted, steady, work=work)
        self.steps.append(step)
        return batch

    def _changes(self, joins: tuple[SlotJoin, ...]) -> _Changes:
        """What a batch changes before it computes anything."""
        blocks = self.blocks
        return self._roster.take_leaves(), joins, blocks.take_edits(), blocks.take_copies(), blocks.take_transfers()

    def _guess_on(self, steady: Steady) -> Batch | None:
        """One more step of the same requests, with guesses where they pay; None if something is to change."""
        if self.steps or steady.left <= 0 or self.slots.order is not steady.slots:
            return None
        if not self._intake.hopeless(self._num_steps):
            return None
        if self.blocks.windowed:
            self.blocks.free_behind(steady.slots, steady.ends)
        if steady.room <= 0:
            if not self.blocks.grow(steady.slots, steady.ends + steady.ones):
                return None
            steady.room = self.blocks.room(steady.slots, steady.ends)
        assert self._speculation is not None
        left = self._budget - len(steady.slots)
        drafts = self._speculation.draft(self.slots, steady.slots, steady.places, None, left, self.blocks)
        if drafts is not None:
            laid = drafts.beside(steady.whose, steady.places, steady.once, steady.order)
            if steady.room > max(drafts.counts) or self.blocks.grow(steady.slots, laid.ends):
                return self._guess(steady, drafts, laid)
        starts = steady.ends
        steady.advance()
        self._num_steps += 1
        return self._again(steady, starts, 1)

    def _continue(self) -> tuple[Plan, StepBudget]:
        """What running requests compute, with blocks for it; preempts if it must. And what is left of the budget."""
        state = self.slots
        while True:
            budget = StepBudget(self._budget, self._target)
            plan = self._share(budget).moving()
            if self.blocks.windowed:
                self.blocks.free_behind(plan.slots, state.done.take(plan.slots))
            if self.blocks.grow(plan.slots, plan.starts + plan.counts):
                return plan, budget
            if self.num_running == 1 and not self.blocks.lent:
                # Alone it fits, once steps under way have let go of what lies behind its window.
                assert self.steps, "an admitted request does not fit alone"
                return Plan(EMPTY, EMPTY, EMPTY, EMPTY), budget
            self._roster.preempt(state[least_claim(state, self._patience)])

    def _share(self, budget: StepBudget) -> Plan:
        """Tokens for running requests: for those that want one, then for those that want several, the best class
        first. These are held back if they are of a worse class than a request that waits."""
        state, slots = self.slots, self.slots.order
        starts = state.computed.take(slots)
        wanted = np.minimum(state.known.take(slots), state.last.take(slots)) - starts
        if self.steps and self._speculation is not None:
            wanted[self._speculation.holds(state, slots)] = 0
        if not self._roster.behind:
            return Plan(slots, starts, budget.take_singles(starts, wanted), EMPTY)
        counts = budget.take_singles(starts, np.where(wanted == 1, wanted, 0))
        head = None if self._intake.hopeless(self._num_steps) else self.queue.peek()
        longer = (wanted > 1).nonzero()[0]
        for n, i in enumerate(longer.tolist()):
            if head is not None and head.effective < state.rank[slots[i]]:
                return Plan(slots, starts, counts, held_back=slots[longer[n:]])
            count = budget.offer(int(starts[i]), int(wanted[i]))
            if count == 0:
                break
            budget.take(int(starts[i]), count)
            counts[i] = count
        return Plan(slots, starts, counts, EMPTY)

    def _go_on(self, plan: Plan, budget: StepBudget) -> Plan:
        """Give requests that were held back what is left of the budget."""
        state, entries = self.slots, []
        for slot in plan.held_back.tolist():
            start, stop = int(state.computed[slot]), int(min(state.known[slot], state.last[slot]))
            count = budget.offer(start, stop - start)
            if count and self.blocks.grow(np.array([slot], np.int32), np.array([start + count], np.int32)):
                budget.take(start, count)
                entries.append((slot, start, count))
        return plan.adding(entries)

    def _take_in(self, plan: Plan, budget: StepBudget, joins: list[SlotJoin], better_than: int | None = None) -> Plan:
        """Let waiting requests join, in the place of who gives way to them."""
        if self._intake.hopeless(self._num_steps):
            return plan
        planned = np.zeros(len(self.slots.sequences), np.int32)
        planned[plan.slots] = plan.counts
        newcomers, gone = self._intake.admit(self._num_steps, budget, planned, better_than)
        joins += [one.join for one in newcomers]
        return plan.without(gone).adding([(one.join.slot, one.start, one.count) for one in newcomers])

    def _draft(self, plan: Plan, left: int) -> Drafts | None:
        """At most `left` guesses to compute beside the plan, if there is room. Nobody gives way to a guess."""
        if self._speculation is None or not len(plan.slots):
            return None
        starts, counts = plan.starts.tolist(), plan.counts.tolist()
        drafts = self._speculation.draft(self.slots, plan.slots, starts, counts, left, self.blocks)
        if drafts is None:
            return None
        more: IntArray = np.array(drafts.counts, np.int32)
        return drafts if self.blocks.grow(plan.slots, plan.starts + plan.counts + more) else None

    def _begin(self, plan: Plan, joins: tuple[SlotJoin, ...], drafts: Drafts | None) -> Batch:
        state = self.slots
        slots, starts, counts = plan.slots, plan.starts, plan.counts
        ends = starts + counts
        entries = (ends == state.known.take(slots)).nonzero()[0].astype(np.int32)
        everywhere = len(entries) == len(slots)
        placed = drafted = None
        if drafts is None:
            sampled = slots if everywhere else slots[entries]
            index = ends if everywhere else ends[entries]
            before = index - 1
        else:
            laid = drafts.beside(slots.tolist(), starts.tolist(), counts.tolist(), entries.tolist())
            counts, ends, drafted, placed = laid.counts, laid.ends, laid.drafted, laid.placed
            entries, sampled, index, before = laid.entry, laid.slot, laid.index, laid.before
            state.drafting.update(drafts.whose(slots.tolist()))
        state.computed[slots] = ends
        # The last row of a slot names its last token.
        state.known[sampled] = index + 1
        rows = LogitRows(entries, before, self._sampling[: len(sampled)], state.top.take(sampled), [])
        if self._roster.scoring:
            rows = self._roster.scoring.add_rows(rows, slots, starts, ends)
        self._num_steps += 1
        step, changes = self._num_steps, self._changes(joins)
        batch = Batch(
            step, slots, starts, counts, rows.entry, rows.position, rows.sample, rows.top, *changes, 1, placed
        )
        serials = state.serial.take(slots)
        self.steps.append(Step(batch, ends, serials, sampled, index, rows.owners, self._roster.departures, drafted))
        if everywhere and drafts is None:
            self._settle(slots, ends)
        return batch

    def _settle(self, slots: IntArray, ends: IntArray) -> None:
        """Take the next step as one more of the same, if all that run decode."""
        if not len(slots) or self._roster.behind or len(slots) != self.num_running:
            return
        # Without guesses only the second such step in a row is taken as the first of many.
        if self._calm_order is slots or self._speculation is not None:
            self._steady = Steady(self.slots, slots, ends, self.blocks.block_size)
        self._calm_order = slots

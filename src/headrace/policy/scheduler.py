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
from headrace.core.request import FinishReason, OutputDelta, Request, RequestState
from headrace.policy import deltas
from headrace.policy.block_manager import BlockManager
from headrace.policy.budget import share
from headrace.policy.preemption import victim
from headrace.policy.queue import Queue
from headrace.policy.scoring import LogitRows, Scoring
from headrace.policy.sequence import Sequence
from headrace.policy.slots import Slots
from headrace.policy.steady import Steady
from headrace.policy.step import Counters, Step

NOT_FINITE = "the model's output was not finite (NaN or infinity) for this request"


class Scheduler:
    """budget: most tokens in a step. The blocks' reach must be at least budget times the steps under way."""

    def __init__(self, slots: Slots, blocks: BlockManager, queue: Queue, *, budget: int) -> None:
        self.slots = slots
        self.blocks = blocks
        self.queue = queue
        self.counters = Counters()
        self.steps: deque[Step] = deque()
        self._budget = budget
        self._sequences: dict[str, Sequence] = {}
        self._tickets = 0
        self._num_steps = 0
        self._leaves: list[int] = []
        self._departures = 0
        # Slots that still compute tokens known when they joined.
        self._behind: set[int] = set()
        self._scoring = Scoring(slots)
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
        return bool(self._sequences) or bool(self.steps)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def add(self, request: Request) -> OutputDelta | None:
        """Queue a request, or answer at once if nothing is to be computed for it."""
        sequence = Sequence.of(request, self._tickets)
        if request.max_tokens <= len(request.output_ids) and (request.output_ids or not sequence.scoring):
            self.counters.finished[FinishReason.LENGTH.value] += 1
            return OutputDelta(request.request_id, finish_reason=FinishReason.LENGTH)
        self._tickets += 1
        self._sequences[request.request_id] = sequence
        self.queue.push(sequence)
        return None

    def abort(self, request_ids: Iterable[str]) -> list[OutputDelta]:
        """End these requests, wherever they stand. Unknown ids are ignored."""
        ended = []
        for request_id in request_ids:
            sequence = self._sequences.get(request_id)
            if sequence is None:
                continue
            if sequence.state is RequestState.RUNNING:
                self._leave(sequence, keep=True)
            else:
                self.queue.remove(sequence)
            delta = OutputDelta(request_id)
            self._finish(sequence, delta, FinishReason.ABORT)
            ended.append(delta)
        return ended

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
        leaves, self._leaves = tuple(self._leaves), []
        return self._begin(slots, starts, counts, leaves, tuple(joins), self.blocks.take_edits())

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
        leaves, self._leaves = tuple(self._leaves), []
        batch = Batch(
            self._num_steps,
            steady.slots,
            starts,
            steady.ones,
            steady.entries,
            starts,
            steady.sample,
            steady.top,
            leaves=leaves,
            edits=self.blocks.take_edits(),
        )
        final = steady.left <= 0
        step = Step(batch, ends, steady.serials, steady.slots, ends, [], self._departures, steady, final)
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
            if self._behind or len(slots) > self._budget:
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
            self._preempt(state[victim(state.order)])

    def _admit(self, budget: int) -> tuple[list[SlotJoin], list[int]]:
        """Take requests from the queue while tokens, slots and blocks last. Returns joins and token counts."""
        joins: list[SlotJoin] = []
        counts: list[int] = []
        while budget > 0 and self.slots.num_free:
            sequence = self.queue.peek()
            if sequence is None or not self._can_admit():
                break
            salt = sequence.cache_salt
            hit = self.blocks.lookup(salt, sequence.tokens, sequence.cacheable)
            known = len(sequence.tokens)
            needed = min(known, sequence.limit - 1)
            # One block is left to each running request, so that none is preempted as soon as it needs its next.
            if not self.blocks.fits(hit, needed, reserve=self.num_running):
                self._blocked = (sequence, self.blocks.version)
                break
            self.queue.pop()
            sequence.move(RequestState.RUNNING)
            slot = self.slots.take(sequence, hit.tokens)
            self.blocks.admit(slot, salt, hit)
            count = min(budget, needed - hit.tokens)
            grown = self.blocks.grow(np.array([slot], np.int32), np.array([hit.tokens + count], np.int32))
            assert grown, "blocks that fit could not be taken"
            budget -= count
            counts.append(count)
            joins.append(self._join(sequence, hit.tokens))
        return joins, counts

    def _join(self, sequence: Sequence, cached: int) -> SlotJoin:
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = cached
            self.counters.prompt_tokens += sequence.prompt_len
            self.counters.cached_tokens += min(cached, sequence.prompt_len)
        self._behind.add(sequence.slot)
        self._scoring.join(sequence)
        return SlotJoin(
            sequence.slot,
            sequence.tokens,
            sequence.prompt_len,
            sequence.params,
            sequence.seed,
            sequence.choice,
            sequence.eos_ids,
        )

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
        if self._scoring:
            rows = self._scoring.add_rows(rows, slots, starts, ends)
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
        self.steps.append(Step(batch, ends, serials, sampled, index, rows.owners, self._departures))
        if everywhere and not self._behind and len(slots) == self.num_running:
            # The second such step of the same requests in a row is taken as the first of many.
            if self._calm_order is slots:
                self._steady = Steady(state, slots, ends, self.blocks.block_size)
            self._calm_order = slots
        return batch

    # What a finished step means

    def update(self, output: BatchOutput) -> list[OutputDelta]:
        """Take in the oldest step under way: what each request is sent. Requests that end here leave their slot
        and blocks at once."""
        state = self.slots
        step = self.steps.popleft()
        if step.steady is not None and step.departures == self._departures and step.steady.plain:
            sent = self._update_steady(step, step.steady, output)
            if sent is not None:
                return sent
        slots, ends, sampled, index = step.batch.slots, step.ends, step.sampled, step.index
        rows: IntArray = np.arange(len(sampled), dtype=np.int32)
        tokens, failed = output.tokens[: len(sampled)], output.failed[: len(sampled)]
        if step.departures != self._departures:
            alive = self.alive(step)
            slots, ends = slots[alive], ends[alive]
            rows = rows[alive[step.batch.logit_entry[: len(sampled)]]]
            sampled, index, tokens, failed = sampled[rows], index[rows], tokens[rows], failed[rows]
        state.done[slots] = ends
        state.tokens[sampled, index] = tokens
        sent = deltas.named(state.request_ids.take(sampled).tolist(), tokens)
        self.counters.generated_tokens += len(sent)
        if self._behind:
            self._catch_up(sampled, index, sent)
        top = state.top.take(sampled)
        for i in np.flatnonzero(top >= 0).tolist():
            sent[i].logprobs = [deltas.logprobs(output, int(rows[i]), int(top[i]))]
        ending = index >= state.last.take(sampled)
        ending |= (state.stops.take(sampled, axis=0) == tokens[:, None]).any(axis=1)
        ending |= failed
        if state.many_stops:
            ending |= self._among_many(sampled, tokens)
        if step.scored:
            self._take_scores(step, set(slots.tolist()), output, sent)
        for i in np.flatnonzero(ending).tolist():
            slot = int(sampled[i])
            if state.sequences[slot] is None:
                continue
            if failed[i]:
                self._break_off(state[slot], sent[i])
            else:
                self._end(state[slot], sent[i], int(index[i]), int(tokens[i]))
        return sent

    def _update_steady(self, step: Step, steady: Steady, output: BatchOutput) -> list[OutputDelta] | None:
        """update() where no request ends; None, and nothing done, if one might."""
        tokens = output.tokens
        if step.final or output.failed.any() or any((column == tokens).any() for column in steady.stops):
            return None
        self.slots.done[steady.at] = step.ends
        self.slots.tokens[steady.at, step.ends] = tokens
        self.counters.generated_tokens += len(tokens)
        return deltas.named(steady.request_ids, tokens)

    def alive(self, step: Step) -> BoolArray:
        """Which entries of a step under way still belong to the request that they were made for."""
        still: BoolArray = self.slots.serial.take(step.batch.slots) == step.serials
        return still

    def fail(self, slot: int, message: str) -> OutputDelta:
        """End the request in this slot alone, with an error."""
        sequence = self.slots[slot]
        self._leave(sequence, keep=False)
        delta = OutputDelta(sequence.request_id, error=message)
        self._finish(sequence, delta, FinishReason.ERROR)
        return delta

    def _break_off(self, sequence: Sequence, delta: OutputDelta) -> None:
        """End a request whose logits were not finite: what this step brought it means nothing."""
        self.counters.generated_tokens -= len(delta.token_ids)
        delta.token_ids, delta.logprobs, delta.error = [], None, NOT_FINITE
        self._leave(sequence, keep=False)
        self._finish(sequence, delta, FinishReason.ERROR)

    def _end(self, sequence: Sequence, delta: OutputDelta, index: int, token: int) -> None:
        """End a request whose token `index` came out last, if it truly ends there."""
        stops = token in sequence.eos_ids or token in sequence.params.stop_token_ids
        if index + 1 - sequence.prompt_len <= sequence.params.min_tokens:
            stops = False
        if stops:
            delta.stop_token = token
        elif index + 1 < sequence.limit:
            return
        self._leave(sequence, keep=True)
        self._finish(sequence, delta, FinishReason.STOP if stops else FinishReason.LENGTH)

    def _finish(self, sequence: Sequence, delta: OutputDelta, reason: FinishReason) -> None:
        sequence.move(RequestState.FINISHED)
        delta.finish_reason = reason
        delta.cached_tokens = max(0, sequence.cached_tokens)
        del self._sequences[sequence.request_id]
        self.counters.finished[reason.value] += 1

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue, with its tokens; samples under way are dropped and will be drawn again, the same."""
        sequence.tokens = self.slots.named(sequence.slot)
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._leave(sequence, keep=True)
        sequence.move(RequestState.PREEMPTED)
        self.queue.push(sequence)

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        """Give up slot and blocks. keep: computed tokens enter the prefix cache."""
        slot = sequence.slot
        if keep:
            done = int(self.slots.done[slot])
            self.blocks.remember(slot, self.slots.tokens[slot, :done], ending=True)
        self.blocks.release(slot)
        self.slots.free(slot)
        self._behind.discard(slot)
        self._scoring.leave(slot)
        self._leaves.append(slot)
        self._departures += 1

    def _catch_up(self, sampled: IntArray, index: IntArray, sent: list[OutputDelta]) -> None:
        """Requests that were still computing what they joined with: cache what is done, say what was cached."""
        state = self.slots
        for slot in tuple(self._behind):
            done, start = int(state.done[slot]), int(state.start[slot])
            self.blocks.remember(slot, state.tokens[slot, : min(done, start)])
            if done >= start:
                self._behind.remove(slot)
        for i in np.flatnonzero(index == state.start.take(sampled)).tolist():
            sent[i].cached_tokens = max(0, state[int(sampled[i])].cached_tokens)

    def _among_many(self, sampled: IntArray, tokens: IntArray) -> BoolArray:
        many = self.slots.many_stops
        pairs = zip(sampled.tolist(), tokens.tolist(), strict=True)
        return np.array([slot in many and token in many[slot] for slot, token in pairs], np.bool_)

    def _take_scores(self, step: Step, alive: set[int], output: BatchOutput, sent: list[OutputDelta]) -> None:
        """Hand out prompt log-probabilities, beside a token if there is one; who wanted nothing else ends."""
        by_id = {delta.request_id: delta for delta in sent}
        for sequence, scored in self._scoring.hand_out(output, len(step.sampled), step.scored, alive):
            delta = by_id.get(sequence.request_id)
            if delta is None:
                delta = OutputDelta(sequence.request_id)
                sent.append(delta)
            if scored is None:
                self._break_off(sequence, delta)
                continue
            delta.prompt_logprobs = scored
            if sequence.limit == sequence.prompt_len and not sequence.scoring:
                self._leave(sequence, keep=True)
                self._finish(sequence, delta, FinishReason.LENGTH)

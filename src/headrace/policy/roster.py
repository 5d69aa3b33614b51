"""Who has a slot, and the moves of a request between queue, slot and end: what it holds is taken and given up here and
nowhere else. It decides nothing: the scheduler says who joins and who gives way, a finished step who ends.
"""

from itertools import chain

import numpy as np

from headrace.core.batch import SlotJoin
from headrace.core.request import CacheHint, ErrorCode, FinishReason, OutputDelta, Request, RequestState
from headrace.policy.block_manager import BlockManager
from headrace.policy.forms import Forms
from headrace.policy.hits import Hit
from headrace.policy.moves import Move
from headrace.policy.parking import Parking
from headrace.policy.preemption import Swap
from headrace.policy.queue import MOST_PASSED, Queue
from headrace.policy.scoring import Scoring
from headrace.policy.sequence import Sequence
from headrace.policy.slots import Slots
from headrace.policy.step import Counters

NOT_FINITE = "the model's output was not finite (NaN or infinity) for this request"
_MOST_ACCOUNTS = 4096


class Roster:
    """swap: says whether what is preempted goes to the host, None where there is none. forms: who compiles them, None
    where none has to be waited for. behind: slots that still compute
    tokens known when they joined. departures: how many have left a slot since the start."""

    def __init__(
        self,
        slots: Slots,
        blocks: BlockManager,
        queue: Queue,
        swap: Swap | None = None,
        forms: Forms | None = None,
    ) -> None:
        self.slots = slots
        self.blocks = blocks
        self.queue = queue
        self.swap = swap
        self._forms = forms
        self.counters = Counters()
        self.scoring = Scoring(slots)
        self.parking = Parking()
        self.behind: set[int] = set()
        self.departures = 0
        self._sequences: dict[str, Sequence] = {}
        self._tickets = 0
        self._leaves: list[int] = []
        self._moves: list[Move] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def add(self, request: Request, now: float) -> OutputDelta | None:
        """Queue a request, or answer at once if nothing is to be computed for it."""
        sequence = Sequence.of(request, self._tickets, now)
        if request.max_tokens <= len(request.output_ids) and (request.output_ids or not sequence.scoring):
            self.counters.finished[FinishReason.LENGTH.value] += 1
            return OutputDelta(request.request_id, finish_reason=FinishReason.LENGTH)
        self._tickets += 1
        self._sequences[request.request_id] = sequence
        # A tenant that comes new is placed beside the others by what they were given until now.
        self.settle()
        self.queue.push(sequence)
        self.blocks.prefetch(sequence.cache_salt, sequence.tokens, sequence.cacheable)
        self._moves.append(Move(sequence, RequestState.WAITING))
        return None

    def settle(self) -> None:
        """Charge tenants for what was computed for their running requests since the last time."""
        accounts = self.queue.accounts
        if len(accounts) < 2:
            return
        state, order = self.slots, self.slots.order
        computed, charged = state.computed.take(order), state.charged.take(order)
        due = np.maximum(computed - charged, 0)
        if due.any():
            accounts.charge_all(state.account.take(order), due)
            state.charged[order] = charged + due
        if len(accounts) > _MOST_ACCOUNTS:
            waiting = {one.account for one in chain(self.queue, self.parking)}
            accounts.close_all_but({*state.account.take(order).tolist(), *waiting})

    def join(self, sequence: Sequence, hit: Hit) -> SlotJoin:
        """Give a request that left the queue a free slot and its cached prefix."""
        sequence.move(RequestState.RUNNING)
        sequence.passed = 0
        free = max(sequence.paid, hit.tokens)
        sequence.paid = max(free, sequence.needed)
        self.queue.accounts.charge(sequence.account, sequence.paid - free)
        slot = self.slots.take(sequence, hit.tokens)
        if sequence.cached_tokens < 0:
            sequence.cache = self.blocks.report(sequence.cache_salt, sequence.tokens, sequence.cacheable, hit)
            sequence.cached_tokens = hit.tokens
            self.counters.prompt_tokens += sequence.prompt_len
            self.counters.cached_tokens += min(hit.tokens, sequence.prompt_len)
            self.counters.host_tokens += sequence.cache.host
            self.counters.disk_tokens += sequence.cache.disk
        self.blocks.admit(slot, sequence.cache_salt, hit, sequence.request_id)
        self.behind.add(slot)
        self.scoring.join(sequence)
        self._moves.append(Move(sequence, RequestState.RUNNING))
        return SlotJoin(
            slot,
            sequence.tokens,
            sequence.prompt_len,
            sequence.params,
            sequence.seed,
            sequence.choice,
            sequence.eos_ids,
        )

    def park(self, sequence: Sequence, hit: Hit) -> None:
        """Let a request that left the queue wait until a running one has computed what both begin with."""
        sequence.awaited = self.slots[hit.awaits].request_id
        self.parking.park(sequence, hit.awaits, hit.awaited)

    def formed(self, sequence: Sequence) -> bool:
        """Whether the form of its output does not have to be waited for."""
        wanted = sequence.params.structured_outputs
        return wanted is None or self._forms is None or self._forms.ready(sequence.request_id, wanted)

    def fetch(self, sequence: Sequence, hit: Hit) -> bool:
        """Let the queue's next wait until the disk has brought what only it has of its prefix. It does so once: False
        if it did, or if there is no room for it."""
        sequence.fetched = True
        read = self.blocks.fetch(hit)
        if read:
            self.parking.park_for_disk(self.queue.pop(), read)
        return bool(read)

    def unpark(self) -> None:
        """Back to the queue with those whose prefix or form is there."""
        ready = self.parking.arrived(self.slots.done) + self.parking.formed(self.formed)
        if self.blocks.tiers is not None:
            ready += self.parking.brought(self.blocks.tiers.brought)
        for sequence in ready:
            self.queue.push(sequence)

    def preempt(self, sequence: Sequence, by: Sequence | None = None, *, swap: bool | None = None) -> None:
        """Back to the queue, with its tokens; samples under way are dropped and will be drawn again, the same. It had
        its turn, so nobody behind it goes before it now. swap: what it computed goes to the host at once, rather than
        when its blocks are needed; None: if that pays."""
        if swap is None:
            swap = self.swap is not None and self.swap.pays(int(self.slots.done[sequence.slot]))
        self.counters.swaps += swap
        sequence.passed = MOST_PASSED
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._leave(sequence, keep=True, swap=swap)
        sequence.move(RequestState.PREEMPTED)
        self.queue.push(sequence)
        self._moves.append(Move(sequence, RequestState.PREEMPTED, by, swap))

    def abort(self, request_id: str) -> OutputDelta | None:
        """End a request wherever it stands; None if the id is unknown."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        if sequence.state is RequestState.RUNNING:
            self._leave(sequence, keep=True)
        else:
            self._withdraw(sequence)
        delta = OutputDelta(request_id)
        self._finish(sequence, delta, FinishReason.ABORT)
        return delta

    def give_up(self, request_id: str, message: str, code: ErrorCode) -> OutputDelta:
        """End a request that waits, with an error."""
        sequence = self._sequences[request_id]
        self._withdraw(sequence)
        delta = OutputDelta(request_id, error=message, code=code)
        self._finish(sequence, delta, FinishReason.ERROR)
        return delta

    def end(self, sequence: Sequence, delta: OutputDelta, reason: FinishReason) -> None:
        """A running request has all it asked for."""
        self._leave(sequence, keep=True, hint=sequence.cache_hint)
        self._finish(sequence, delta, reason)

    def fail(self, sequence: Sequence, message: str) -> OutputDelta:
        """End a running request alone, with an error."""
        delta = OutputDelta(sequence.request_id, error=message)
        self._leave(sequence, keep=False)
        self._finish(sequence, delta, FinishReason.ERROR)
        return delta

    def break_off(self, sequence: Sequence, delta: OutputDelta, reason: str = NOT_FINITE) -> None:
        """End a request for which a row of this step has failed: what the step brought it means nothing."""
        self.counters.generated_tokens -= len(delta.token_ids)
        delta.token_ids, delta.logprobs, delta.error = [], None, reason
        self._leave(sequence, keep=False)
        self._finish(sequence, delta, FinishReason.ERROR)

    def take_moves(self) -> list[Move]:
        """Changes of state since the last call, in order."""
        moves, self._moves = self._moves, []
        return moves

    def take_leaves(self) -> tuple[int, ...]:
        """Slots left since the last call."""
        leaves, self._leaves = tuple(self._leaves), []
        return leaves

    def _withdraw(self, sequence: Sequence) -> None:
        """Stop one that waits from waiting."""
        if not self.parking.remove(sequence):
            self.queue.remove(sequence)

    def _leave(self, sequence: Sequence, *, keep: bool, hint: CacheHint | None = None, swap: bool = False) -> None:
        """Give up slot and blocks. keep: computed tokens enter the prefix cache, and hint says how they fare there."""
        slot = sequence.slot
        sequence.tokens = self.slots.named(slot)
        sequence.paid = max(int(self.slots.charged[slot]), int(self.slots.computed[slot]))
        self.queue.accounts.charge(sequence.account, sequence.paid - int(self.slots.charged[slot]))
        if keep:
            done = int(self.slots.done[slot])
            self.blocks.remember(slot, self.slots.tokens[slot, :done], ending=True)
        self.blocks.release(slot, hint, swap=swap)
        self.slots.free(slot)
        self.behind.discard(slot)
        self.scoring.leave(slot)
        self._leaves.append(slot)
        self.departures += 1
        for waiting in self.parking.left(slot):
            self.queue.push(waiting)

    def _finish(self, sequence: Sequence, delta: OutputDelta, reason: FinishReason) -> None:
        sequence.move(RequestState.FINISHED)
        delta.finish_reason = reason
        delta.cached_tokens = max(0, sequence.cached_tokens)
        del self._sequences[sequence.request_id]
        if self._forms is not None:
            self._forms.release(sequence.request_id)
        self.counters.finished[reason.value] += 1
        self._moves.append(Move(sequence, RequestState.FINISHED, reason=reason))

"""The numbers of running requests, as arrays with one entry for each slot, so that a step is a few vector
operations however many run. Only the scheduler writes here.
"""

import numpy as np
import numpy.typing as npt

from headrace.core.batch import IntArray
from headrace.policy.sequence import Sequence

FREE = -1
MOST_STOPS = 8
_TICKET_BITS = 32
_LEAST = 4
_BEST = -(2**31)


class Slots:
    """All int32 [num_slots]:

    known      tokens that exist, those still being sampled by a step under way included
    computed   positions handed to the device; done: positions whose step has finished
    last       positions that will be computed at most: the last token of all needs none
    start      tokens known when the slot was taken; from then on each step that finishes names one more
    serial     rises when the slot changes hands, so that a step under way can be told from its successor's
    top        likeliest tokens to report for each sampled one, -1 for no log-probability
    priority   class, for who gives way; rank is the class it is served in (queue.py)
    preemptions  how often its request was
    draft_most draft tokens it may have in a step
    account    where its tenant's tokens are counted; charged: positions paid for

    drafting: slots of which a step under way has drafts, so that their next position is not known yet.
    tokens int32 [slots, positions] holds named tokens; it grows with the slots and lengths that are used, so that an
    engine with little to do takes little memory.
    stops int32 [num_slots, k]: token ids that end the request, padded with -1; a request with more than MOST_STOPS
    of them has them in many_stops instead, so that it does not widen the array for all.
    """

    def __init__(self, num_slots: int, max_model_len: int) -> None:
        self.known: IntArray = np.zeros(num_slots, np.int32)
        self.computed: IntArray = np.zeros(num_slots, np.int32)
        self.done: IntArray = np.zeros(num_slots, np.int32)
        self.last: IntArray = np.zeros(num_slots, np.int32)
        self.start: IntArray = np.zeros(num_slots, np.int32)
        self.serial: IntArray = np.zeros(num_slots, np.int32)
        self.top: IntArray = np.full(num_slots, -1, np.int32)
        self.priority: IntArray = np.zeros(num_slots, np.int32)
        self.rank: IntArray = np.zeros(num_slots, np.int32)
        self.preemptions: IntArray = np.zeros(num_slots, np.int32)
        self.draft_most: IntArray = np.zeros(num_slots, np.int32)
        self.drafting: set[int] = set()
        self.account: IntArray = np.zeros(num_slots, np.int32)
        self.charged: IntArray = np.zeros(num_slots, np.int32)
        self.tokens: IntArray = np.zeros((0, 0), np.int32)
        self._max_model_len = max_model_len
        self.stops: IntArray = np.full((num_slots, 1), -1, np.int32)
        self.request_ids = np.full(num_slots, None, object)
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.many_stops: dict[int, frozenset[int]] = {}
        self._tickets: npt.NDArray[np.int64] = np.full(num_slots, FREE, np.int64)
        self._order: IntArray | None = None
        self._worst = _BEST
        # Whether any request so far had a stop, and whether any asked for log-probabilities.
        self.stopping = self.reporting = False
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def order(self) -> IntArray:
        """The taken slots, by rank and then in order of arrival, int32 [n]. Not to be written to."""
        if self._order is None:
            taken = (self._tickets != FREE).nonzero()[0]
            if len(taken) > 1:
                place = (self.rank.take(taken).astype(np.int64) << _TICKET_BITS) + self._tickets.take(taken)
                taken = taken.take(place.argsort())
            self._order = taken.astype(np.int32)
            self._worst = max(self.priority.take(taken).tolist(), default=_BEST)
        return self._order

    @property
    def worst_priority(self) -> int:
        """The lowest class, which is the highest number, among the taken slots."""
        return self._worst if len(self.order) else _BEST

    def by_claim(self, most_preemptions: int) -> IntArray:
        """The taken slots, int32 [n], from the one that must never give way to the one that does so first: requests
        that were preempted most_preemptions times, then by class, then in order of arrival."""
        taken = np.flatnonzero(self._tickets != FREE)
        order = np.lexsort((self._tickets[taken], self.priority[taken], self.preemptions[taken] < most_preemptions))
        return taken[order].astype(np.int32)

    @property
    def num_taken(self) -> int:
        return len(self.sequences) - len(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, sequence: Sequence, computed: int) -> int:
        """A free slot for this sequence, of which `computed` positions came from the prefix cache."""
        slot = self._free.pop()
        params = sequence.params
        known = len(sequence.tokens)
        self.known[slot] = self.start[slot] = known
        self.computed[slot] = self.done[slot] = computed
        self.last[slot] = sequence.limit - 1
        if params.logprobs is not None or self.reporting:
            self.top[slot] = -1 if params.logprobs is None else params.logprobs
            self.reporting = True
        self.priority[slot], self.rank[slot] = sequence.priority, sequence.effective
        self.preemptions[slot] = sequence.preemptions
        self.draft_most[slot] = sequence.draft_most
        self.drafting.discard(slot)
        self.account[slot], self.charged[slot] = sequence.account, sequence.paid
        self._make_room(slot, sequence.limit)
        self.tokens[slot, :known] = sequence.tokens
        self._set_stops(slot, (*sequence.eos_ids, *params.stop_token_ids))
        self.request_ids[slot] = sequence.request_id
        self.sequences[slot] = sequence
        sequence.slot = slot
        self._tickets[slot] = sequence.ticket
        self._order = None
        return slot

    def free(self, slot: int) -> None:
        sequence = self[slot]
        sequence.slot = FREE
        self.sequences[slot] = None
        self.request_ids[slot] = None
        self.serial[slot] += 1
        self.many_stops.pop(slot, None)
        self._free.append(slot)
        self._tickets[slot] = FREE
        self._order = None

    def __getitem__(self, slot: int) -> Sequence:
        sequence = self.sequences[slot]
        assert sequence is not None, f"slot {slot} is free"
        return sequence

    def num_named(self, slot: int) -> int:
        """How many tokens have known values."""
        return max(int(self.start[slot]), int(self.done[slot]) + 1)

    def named(self, slot: int) -> IntArray:
        """A copy of the tokens whose values are known: int32 [n]."""
        return self.tokens[slot, : self.num_named(slot)].copy()

    def _make_room(self, slot: int, length: int) -> None:
        """Let this slot hold so many tokens."""
        rows, width = self.tokens.shape
        if slot < rows and length <= width:
            return
        more = _grown(rows, slot + 1, len(self.sequences)), _grown(width, length, self._max_model_len)
        tokens: IntArray = np.empty(more, np.int32)
        for other, sequence in enumerate(self.sequences[:rows]):
            if sequence is not None:
                known = self.known[other]
                tokens[other, :known] = self.tokens[other, :known]
        self.tokens = tokens

    def _set_stops(self, slot: int, ids: tuple[int, ...]) -> None:
        if len(ids) > MOST_STOPS:
            self.many_stops[slot] = frozenset(ids)
            ids = ()
        if not ids and not self.stopping:
            return
        self.stopping = True
        width = self.stops.shape[1]
        if len(ids) > width:
            self.stops = np.pad(self.stops, ((0, 0), (0, len(ids) - width)), constant_values=-1)
        self.stops[slot] = -1
        self.stops[slot, : len(ids)] = ids


def _grown(have: int, needed: int, most: int) -> int:
    """A size that is seldom outgrown: at least twice what was there, as long as that is allowed."""
    return have if needed <= have else max(needed, min(2 * max(have, _LEAST), most))

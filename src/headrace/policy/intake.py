"""Who of those that wait joins: the queue's next, while tokens, slots and blocks last. What does not fit is passed
over for what comes after it, but only so many times: then nobody behind it is served until it is, so it waits no
longer than those who run and those who passed it take to end. For a request of a higher class, running ones of lower
classes give way (preemption.py), unless even that would not make it fit.
"""

from bisect import bisect_left
from collections.abc import Iterable

import msgspec
import numpy as np

from headrace.core.batch import EMPTY, IntArray, SlotJoin
from headrace.policy.budget import StepBudget
from headrace.policy.hits import Hit
from headrace.policy.preemption import Patience, yielding
from headrace.policy.queue import MOST_PASSED
from headrace.policy.roster import Roster
from headrace.policy.sequence import Sequence

# Requests that do not fit, looked at in one step.
_MOST_TRIED = 16
# Requests that wait for the forms of their outputs at a time: what is compiled for them takes memory until they end.
_MOST_FORMING = 64
# Steps after which those who could not join are looked at again though no place was given up: one who runs may have
# stayed long enough to give way by then.
_LOOK_AGAIN = 16
_FOREVER = 2**31


class Newcomer(msgspec.Struct, frozen=True, gc=False):
    """A request that joined, and the positions that its first step computes."""

    join: SlotJoin
    start: int
    count: int


class Intake:
    def __init__(self, roster: Roster, patience: Patience) -> None:
        self._roster = roster
        self._patience = patience
        # (queue.version, blocks.version) when last nobody could join, and the step at which to look again.
        self._stuck: tuple[int, int] | None = None
        self._look_at = 0
        # Blocks that running requests still lack for what they joined with, while admit() runs.
        self._promised: list[int] | None = None

    def hopeless(self, step: int) -> bool:
        """Whether nobody can join in this step, as far as can be told at a glance."""
        return self.hopeless_for(step) > 0

    def hopeless_for(self, step: int) -> int:
        """For how many steps from this one on that holds, if nothing changes meanwhile."""
        roster = self._roster
        queue, slots = roster.queue, roster.slots
        if not len(queue):
            return _FOREVER
        if not slots.num_free:
            head = queue.peek()
            # All behind the head are of its class or lower ones, unless it got ahead by ageing.
            if head is None or (head.effective == head.priority and head.priority >= slots.worst_priority):
                return _FOREVER
        stuck = self._stuck == (queue.version, roster.blocks.version)
        return max(0, self._look_at - step) if stuck else 0

    def admit(
        self, step: int, budget: StepBudget, planned: IntArray, better_than: int | None = None
    ) -> tuple[list[Newcomer], list[int]]:
        """Let requests join, only those of a class better than `better_than` if that is given. planned: tokens that
        each slot computes in this step, int32 [num_slots]. Returns who joined and the slots that were given up."""
        roster, queue = self._roster, self._roster.queue
        if queue.contended:
            roster.settle()
        joined: list[Newcomer] = []
        gone: list[int] = []
        passed: list[Sequence] = []
        all_tried = True
        self._promised = None
        while not self.hopeless(step) and len(passed) < _MOST_TRIED:
            head = queue.peek()
            if head is None or (better_than is not None and head.effective >= better_than):
                all_tried = False
                break
            if not roster.formed(head):
                if len(roster.parking.forming) >= _MOST_FORMING:
                    all_tried = False
                    break
                roster.parking.forming.append(queue.pop())
                continue
            if self._still_too_long(head, budget):
                passed.append(queue.pop())
                if head.passed >= MOST_PASSED:
                    break
                continue
            salt, tokens = head.cache_salt, head.tokens
            hit = roster.blocks.lookup(salt, tokens, head.cacheable, roster.slots, disk=not head.fetched)
            if hit.awaits >= 0 and roster.slots[hit.awaits].priority <= head.priority:
                if len(roster.parking) - len(roster.parking.forming) >= len(roster.slots.sequences):
                    # More than could run once it is done.
                    all_tried = False
                    break
                queue.pop()
                roster.park(head, hit)
                continue
            if hit.on_disk:
                # Once it was, it makes do with what the host has by then.
                roster.fetch(head, hit)
                continue
            if budget.left > 0 and budget.offer(hit.tokens, head.needed - hit.tokens) == 0:
                all_tried = False
                break
            queue.pop()
            victims = self._victims(head, hit, budget, planned, joined)
            if victims is None:
                passed.append(head)
                all_tried = budget.left > 0
                if budget.left == 0 or head.passed >= MOST_PASSED:
                    break
                continue
            if victims:
                for slot in victims:
                    roster.preempt(roster.slots[slot], head)
                    budget.left += int(planned[slot])
                gone += victims
                self._promised = None
                hit = roster.blocks.lookup(salt, tokens, head.cacheable, disk=False)
            joined.append(self._join(head, hit, budget))
            for one in passed:
                one.passed += 1
            if any(one.passed >= MOST_PASSED for one in passed):
                break
        for one in passed:
            queue.push(one)
        if joined:
            ends = [one.start + one.count for one in joined]
            grown = roster.blocks.grow(_int32(one.join.slot for one in joined), _int32(ends))
            assert grown, "blocks that fit could not be taken"
        if all_tried and not joined:
            self._stuck = (queue.version, roster.blocks.version)
            self._look_at = step + _LOOK_AGAIN
        return joined, gone

    def _victims(
        self, sequence: Sequence, hit: Hit, budget: StepBudget, planned: IntArray, joined: list[Newcomer]
    ) -> list[int] | None:
        """The fewest slots that must give way for this request to fit; None if it does not even then. Those that
        joined just now do not."""
        roster = self._roster

        def fits(victims: IntArray) -> bool:
            return budget.left + int(planned[victims].sum()) > 0 and self._fits_beside(sequence, hit, victims)

        if roster.slots.num_free and budget.left > 0 and self._fits_beside(sequence, hit, EMPTY):
            return []
        if sequence.priority >= roster.slots.worst_priority:
            known = 0 if hit.match is None else hit.match.blocks
            sequence.looked = len(sequence.tokens), known, roster.blocks.given
            return None
        candidates = yielding(roster.slots, sequence.priority, self._patience)
        candidates = candidates[~np.isin(candidates, [one.join.slot for one in joined])]
        fewest = 1 + bisect_left(range(1, len(candidates) + 1), True, key=lambda count: fits(candidates[:count]))
        return candidates[:fewest].tolist() if fewest <= len(candidates) else None

    def _still_too_long(self, sequence: Sequence, budget: StepBudget) -> bool:
        """Whether one that did not fit before does not now, whatever the cache was given since: that is told without
        looking it up."""
        roster, looked = self._roster, sequence.looked
        if looked is None or looked[0] != len(sequence.tokens) or budget.left <= 0:
            return False
        if not roster.slots.num_free or sequence.priority < roster.slots.worst_priority:
            return False
        known = looked[1] + roster.blocks.given - looked[2]
        blocks, promised = roster.blocks, self._promises()
        more = roster.slots.num_taken + blocks.set_aside - known
        pools = enumerate(blocks.pools)
        return any(
            blocks.peak(group, sequence.needed) + promised[group] + more > pool.available for group, pool in pools
        )

    def _join(self, sequence: Sequence, hit: Hit, budget: StepBudget) -> Newcomer:
        count = budget.offer(hit.tokens, sequence.needed - hit.tokens)
        budget.take(hit.tokens, count)
        join = self._roster.join(sequence, hit)
        if not len(self._roster.queue):
            self._promised = None
        elif self._promised is not None:
            slot = _int32([join.slot])
            lacking = self._roster.blocks.lacking(slot, self._roster.slots.start[slot])
            self._promised = [a + b for a, b in zip(self._promised, lacking, strict=True)]
        return Newcomer(join, hit.tokens, count)

    def _fits_beside(self, sequence: Sequence, hit: Hit, without: IntArray) -> bool:
        """Whether there are blocks for this request, once the slots in `without` have given up theirs. What running
        requests still lack for what they joined with is theirs, and one block more for each of them, so that none is
        preempted as soon as it needs its next."""
        roster = self._roster
        if len(without):
            promised = self._lacking(np.setdiff1d(_int32(roster.behind), without))
        else:
            promised = self._promises()
        reserve = roster.slots.num_taken - len(without)
        return roster.blocks.fits(hit, sequence.needed, reserve, promised, without)

    def _promises(self) -> list[int]:
        if self._promised is None:
            self._promised = self._lacking(_int32(self._roster.behind))
        return self._promised

    def _lacking(self, behind: IntArray) -> list[int]:
        if not len(behind):
            return [0] * len(self._roster.blocks.pools)
        return self._roster.blocks.lacking(behind, self._roster.slots.start[behind])


def _int32(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, np.int32)

"""The machine is not blind: each of these bugs, planted into the policy, is found within a few worlds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from tests.policy.machine import Shape
from tests.policy.worlds import run_world

from headrace.core.batch import BlockCopies
from headrace.policy import intake, outcome, scheduler, verification
from headrace.policy.block_manager import BlockManager
from headrace.policy.block_pool import BlockPool
from headrace.policy.budget import StepBudget
from headrace.policy.parking import Parking
from headrace.policy.preemption import yielding
from headrace.policy.queue import FairQueue, Line
from headrace.policy.roster import Roster
from headrace.policy.speculation import Speculation
from headrace.policy.tiers import Tiers

WORLDS = 60
SHAPES = [
    Shape(slots=4, block_size=4, blocks=(12,), vocab_size=4, budget=16),
    Shape(slots=4, block_size=4, blocks=(600,), vocab_size=4, budget=16, depth=2),
    Shape(slots=6, block_size=2, blocks=(24,), vocab_size=1000, budget=5, depth=2),
    Shape(slots=2, block_size=4, blocks=(11, 20), windows=(None, 5), vocab_size=4, budget=16, depth=2),
    Shape(slots=3, block_size=4, blocks=(11,), vocab_size=4, budget=16, depth=2, host=6, disk=30),
    Shape(slots=6, block_size=4, blocks=(12,), vocab_size=1000, budget=16),
]
CROWDED = SHAPES[-1]
GUESSING = [
    Shape(slots=4, block_size=4, blocks=(16,), vocab_size=4, budget=16, wrong=3),
    Shape(slots=4, block_size=4, blocks=(600,), vocab_size=4, budget=64, depth=2, wrong=2),
    Shape(slots=3, block_size=2, blocks=(40, 40), windows=(None, 5), vocab_size=1000, budget=16, depth=2, wrong=0),
]
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def an_epoch_is_not_bumped(patch):
    take = BlockPool.take

    def taken(self, count):
        blocks = take(self, count)
        self.epochs[blocks] -= 1
        return blocks

    patch.setattr(BlockPool, "take", taken)


def blocks_are_freed_twice(patch):
    release = BlockPool.release

    def released(self, blocks):
        idle = release(self, blocks)
        unused = blocks[(self.refs[blocks] == 0) & ~self.cached[blocks]]
        if len(unused) and self._num_free < self.num_blocks:
            self._push(unused[:1])
        return idle

    patch.setattr(BlockPool, "release", released)


def a_hit_counts_a_token_too_many(patch):
    lookup = BlockManager.lookup

    def found(self, salt, tokens, most, running=None, **rest):
        hit = lookup(self, salt, tokens, most, running, **rest)
        return structs.replace(hit, tokens=hit.tokens + 1) if hit.tokens % self.block_size else hit

    patch.setattr(BlockManager, "lookup", found)


def the_last_block_of_a_hit_is_not_used(patch):
    lookup = BlockManager.lookup

    def found(self, salt, tokens, most, running=None, **rest):
        return lookup(self, salt, tokens, most - self.block_size, running, **rest)

    patch.setattr(BlockManager, "lookup", found)


def namespaces_are_forgotten(patch):
    lookup, admit = BlockManager.lookup, BlockManager.admit
    patch.setattr(BlockManager, "lookup", lambda self, salt, *rest, **named: lookup(self, "", *rest, **named))
    patch.setattr(BlockManager, "admit", lambda self, slot, salt, *rest: admit(self, slot, "", *rest))


def a_blocked_request_is_never_woken(patch):
    def released(self, slot, *rest, **named):
        version = self.version
        release(self, slot, *rest, **named)
        self.version = version

    release = BlockManager.release
    patch.setattr(BlockManager, "release", released)


def tokens_under_way_enter_the_tree(patch):
    leave = Roster._leave

    def left(self, sequence, *, keep, **named):
        self.slots.done[sequence.slot] = self.slots.computed[sequence.slot]
        leave(self, sequence, keep=keep, **named)

    patch.setattr(Roster, "_leave", left)


def a_preempted_request_forgets_its_last_token(patch):
    preempt = Roster.preempt

    def preempted(self, sequence, *by):
        preempt(self, sequence, *by)
        sequence.tokens = sequence.tokens[:-1]

    patch.setattr(Roster, "preempt", preempted)


def an_aborted_request_stays_in_the_queue(patch):
    patch.setattr(FairQueue, "remove", lambda self, sequence: None)


def rows_of_those_who_left_are_taken_in(patch):
    take_in = outcome.take_in

    def taken(roster, step, *rest):
        step.departures = roster.departures
        return take_in(roster, step, *rest)

    patch.setattr(scheduler, "take_in", taken)


def what_lies_behind_a_window_is_freed_too_soon(patch):
    free_behind = BlockManager.free_behind
    patch.setattr(BlockManager, "free_behind", lambda self, slots, done: free_behind(self, slots, done + 2))


def a_stop_is_seen_one_token_late(patch):
    end = outcome._end

    def ended(roster, sequence, delta, index, *rest):
        if index + 1 < sequence.limit and sequence.prompt_len + 1 == index:
            return
        end(roster, sequence, delta, index, *rest)

    patch.setattr(outcome, "_end", ended)


def a_block_is_shared_in_part_without_a_copy(patch):
    patch.setattr(BlockManager, "take_copies", lambda self: BlockCopies())


def a_copy_is_made_from_the_wrong_block(patch):
    def copied(self):
        made = take_copies(self)
        return BlockCopies(made.kind, made.group, np.maximum(made.source - 1, 0), made.destination)

    take_copies = BlockManager.take_copies
    patch.setattr(BlockManager, "take_copies", copied)


def who_waits_for_a_prefix_is_forgotten(patch):
    patch.setattr(Parking, "park", lambda self, sequence, slot, position: None)


def a_step_takes_more_than_its_budget(patch):
    patch.setattr(StepBudget, "offer", lambda self, start, wanted: wanted)


def a_failed_request_leaves_its_blocks_in_the_tree(patch):
    leave = Roster._leave

    def left(self, sequence, *, keep, **named):
        if not keep:
            done = self.slots.computed[sequence.slot]
            self.blocks.remember(sequence.slot, self.slots.tokens[sequence.slot, :done], ending=True)
        leave(self, sequence, keep=keep, **named)

    patch.setattr(Roster, "_leave", left)


def an_evicted_block_stays_in_the_tree(patch):
    def taken(self, group, count, slot):
        self.pools[group].evict(self.pools[group].shortage(count))
        return self.pools[group].take(count)

    patch.setattr(BlockManager, "_take", taken)


def a_table_is_not_told_of_a_shared_block(patch):
    write = BlockManager._write

    def written(self, slots, group, index, blocks, epochs):
        write(self, slots, group, index, blocks, epochs)
        if len(slots) > 1 and len(np.unique(slots)) == 1:
            self._orders._edits.pop()

    patch.setattr(BlockManager, "_write", written)


def the_best_class_gives_way(patch):
    patch.setattr(scheduler, "least_claim", lambda slots, patience: int(slots.by_claim(patience.most_preemptions)[0]))


def equals_give_way(patch):
    patch.setattr(intake, "yielding", lambda slots, priority, patience: yielding(slots, priority - 1, patience))


def nobody_gives_way(patch):
    patch.setattr(intake, "yielding", lambda slots, priority, patience: yielding(slots, 99, patience))


def classes_are_served_in_reverse(patch):
    patch.setattr(FairQueue, "_aged", lambda self, sequence, level: -sequence.priority)


def the_last_is_served_first(patch):
    patch.setattr(Line, "first", lambda self: self.waiting[max(self.waiting)])


def what_does_not_fit_is_passed_for_ever(patch):
    patch.setattr(intake, "MOST_PASSED", 10**9)


def a_damaged_block_is_taken_for_good(patch):
    arrived = Tiers.arrived
    patch.setattr(Tiers, "arrived", lambda self, results: arrived(self, [replace(one, ok=True) for one in results]))


def a_host_block_is_given_away_before_it_is_copied_up(patch):
    patch.setattr(Tiers, "hold", lambda self, group, blocks: None)
    patch.setattr(Tiers, "let_go", lambda self, group, blocks: None)


def what_goes_down_is_copied_to_another_place(patch):
    lower = Tiers.lower

    def lowered(self, *block):
        below = lower(self, *block)
        return None if below is None else (below + 1) % self.sizes.host_blocks[0]

    patch.setattr(Tiers, "lower", lowered)


def a_wrong_guess_is_kept(patch):
    settle = outcome.settle_drafts

    def settled(*step):
        done = settle(*step)
        return replace(done, keep=np.ones_like(done.keep))

    patch.setattr(outcome, "settle_drafts", settled)


def what_a_wrong_guess_computed_stays(patch):
    settle = outcome.settle_drafts

    def settled(state, speculation, step, output):
        ends = step.ends.copy()
        done = settle(state, speculation, step, output)
        step.ends[:] = ends
        return done

    patch.setattr(outcome, "settle_drafts", settled)


def guesses_after_a_stop_are_kept(patch):
    patch.setattr(verification, "_stops", lambda state, slot: frozenset())


def an_unproven_guess_is_built_upon(patch):
    patch.setattr(Speculation, "holds", lambda self, state, slots: np.zeros(len(slots), np.bool_))


def blocks_for_guesses_are_only_promised(patch):
    patch.setattr(BlockManager, "grow_towards", lambda self, slots, ends, more: more)


GUESSED: list[Plant] = [
    a_wrong_guess_is_kept,
    what_a_wrong_guess_computed_stays,
    guesses_after_a_stop_are_kept,
    an_unproven_guess_is_built_upon,
    blocks_for_guesses_are_only_promised,
]
BUGS: list[Plant] = [
    *GUESSED,
    a_damaged_block_is_taken_for_good,
    a_host_block_is_given_away_before_it_is_copied_up,
    what_goes_down_is_copied_to_another_place,
    the_best_class_gives_way,
    equals_give_way,
    nobody_gives_way,
    classes_are_served_in_reverse,
    the_last_is_served_first,
    what_does_not_fit_is_passed_for_ever,
    an_epoch_is_not_bumped,
    blocks_are_freed_twice,
    a_hit_counts_a_token_too_many,
    the_last_block_of_a_hit_is_not_used,
    namespaces_are_forgotten,
    a_blocked_request_is_never_woken,
    tokens_under_way_enter_the_tree,
    a_preempted_request_forgets_its_last_token,
    an_aborted_request_stays_in_the_queue,
    rows_of_those_who_left_are_taken_in,
    what_lies_behind_a_window_is_freed_too_soon,
    a_block_is_shared_in_part_without_a_copy,
    a_copy_is_made_from_the_wrong_block,
    who_waits_for_a_prefix_is_forgotten,
    a_stop_is_seen_one_token_late,
    a_step_takes_more_than_its_budget,
    a_failed_request_leaves_its_blocks_in_the_tree,
    an_evicted_block_stays_in_the_tree,
    a_table_is_not_told_of_a_shared_block,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    # Policy's own assertions may fall first; a bug that cannot even be planted is none that was found.
    with pytest.raises((AssertionError, ValueError, LookupError)) as found:
        for seed in range(WORLDS):
            shapes = GUESSING if plant in GUESSED else SHAPES
            shape = shapes[seed % len(shapes)]
            run_world(seed, 250, Counter(), shape, crowd=shape is CROWDED)
    print(f"{plant.__name__}: {found.type.__name__}: {found.value} ({found.value.__notes__[-1]})")

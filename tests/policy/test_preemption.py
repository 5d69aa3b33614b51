"""Who gives way first, and whether what was computed is worth carrying."""

import pytest

from headrace.core.request import Request, SamplingParams
from headrace.policy.latency import LatencyModel, LinearPrior
from headrace.policy.preemption import COPIED_PER_S, Patience, Swap, least_claim, yielding
from headrace.policy.sequence import Sequence
from headrace.policy.slots import Slots


def running(*kinds):
    """Slots taken by (priority, preemptions, tokens gained) in order of arrival."""
    slots = Slots(len(kinds), 64)
    for ticket, (priority, preemptions, gained) in enumerate(kinds):
        one = Sequence.of(Request(str(ticket), [1, 2, 3], SamplingParams(), 40, 0, priority=priority), ticket)
        one.preemptions = preemptions
        slot = slots.take(one, 0)
        slots.done[slot] = slots.start[slot] - 1 + gained
    return slots


def names(slots, order):
    return [slots[int(slot)].request_id for slot in order]


def test_the_lowest_class_and_in_it_the_latest_goes_first():
    slots = running((2, 0, 0), (0, 0, 0), (2, 0, 0), (1, 0, 0))
    assert names(slots, yielding(slots, 0, Patience())) == ["2", "0", "3"]
    assert names(slots, yielding(slots, 1, Patience())) == ["2", "0"]
    assert names(slots, yielding(slots, 2, Patience())) == []
    assert slots[least_claim(slots, Patience())].request_id == "2"


def test_who_was_preempted_often_or_has_just_come_back_does_not_give_way_to_those_that_wait():
    slots = running((1, 3, 30), (1, 2, 15), (1, 2, 16), (1, 0, 0))
    assert names(slots, yielding(slots, 0, Patience())) == ["3", "2"]
    assert names(slots, yielding(slots, 0, Patience(most_preemptions=0))) == []


def test_where_blocks_run_out_the_immune_are_last_and_then_the_best_class():
    assert running((0, 0, 0), (5, 3, 0))[least_claim(running((0, 0, 0), (5, 3, 0)), Patience())].request_id == "0"
    slots = running((0, 0, 0), (1, 0, 0), (1, 1, 0))
    assert slots[least_claim(slots, Patience())].request_id == "2"


@pytest.mark.parametrize("bytes_per_position, pays", [(1e4, True), (1e7, False)])
def test_swapping_pays_where_copying_is_quicker_than_computing(bytes_per_position, pays):
    latency = LatencyModel(LinearPrior(step=0, token=1e-3, request=0, context=0, pair=0, row=0))
    assert Swap(latency, bytes_per_position).pays(100) is pays
    assert (2 * bytes_per_position / COPIED_PER_S < 1e-3) is pays

"""Strict classes, fair shares of tenants, first come first served inside a tenant; also after removal, return, age."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.request import Request, SamplingParams
from headrace.policy.fairness import Accounts
from headrace.policy.queue import FairQueue
from headrace.policy.sequence import Sequence

PARAMS = SamplingParams()


def sequence(ticket, *, priority=0, tenant="", now=0.0):
    one = Request(str(ticket), [1], PARAMS, 4, 0, priority=priority, tenant=tenant)
    return Sequence.of(one, ticket, now)


def drained(queue):
    return [queue.pop().ticket for _ in range(len(queue))]


class Model:
    """What FairQueue must do, in the plainest way: all that wait in a list, sorted anew each time."""

    def __init__(self, aging_s=None, cap=0):
        self.waiting, self.given, self.reached = [], {}, {}
        self.aging_s, self.cap = aging_s, cap

    def line(self, one):
        return (one.effective, one.tenant)

    def enter(self, one, effective, returning):
        one.effective = effective
        line = self.line(one)
        self.given.setdefault(line, 0.0)
        if not returning and line not in {self.line(other) for other in self.waiting}:
            others = [self.given[self.line(other)] for other in self.waiting if other.effective == effective]
            least = min(others) if others else self.reached.get(effective, 0.0)
            self.given[line] = max(self.given[line], least)
        self.waiting.append(one)

    def first(self):
        def place(one):
            line = self.line(one)
            first = min(other.ticket for other in self.waiting if self.line(other) == line)
            return (one.effective, self.given[line], first, one.ticket)

        return min(self.waiting, key=place, default=None)

    def pop(self):
        first = self.first()
        line = self.line(first)
        self.reached[first.effective] = max(self.reached.get(first.effective, 0.0), self.given[line])
        self.waiting.remove(first)
        return first


actions = st.lists(
    st.tuples(st.sampled_from(["push", "push", "pop", "remove", "return", "charge"]), st.integers(0, 50)), max_size=60
)


@settings(max_examples=300)
@given(actions, st.integers(1, 4), st.integers(1, 3))
def test_it_behaves_as_a_sorted_list(program, tenants, classes):
    queue, model, out, tickets = FairQueue(Accounts(lambda tenant: 2.0 if tenant == "t1" else 1.0)), Model(), [], 0
    twins = {}
    for action, pick in program:
        if action == "push":
            mine = sequence(tickets, priority=pick % classes, tenant=f"t{pick % tenants}")
            twins[tickets] = sequence(tickets, priority=mine.priority, tenant=mine.tenant)
            queue.push(mine)
            model.enter(twins[tickets], mine.priority, returning=False)
            tickets += 1
        elif action == "return" and out:
            back = out.pop(pick % len(out))
            queue.push(back)
            model.enter(twins[back.ticket], back.priority, returning=True)
        elif action == "charge" and out:
            one = out[pick % len(out)]
            queue.accounts.charge(one.account, pick)
            model.given[(one.effective, one.tenant)] += pick / (2.0 if one.tenant == "t1" else 1.0)
        elif action == "pop" and model.waiting:
            assert queue.peek().ticket == model.first().ticket
            out.append(queue.pop())
            assert out[-1].ticket == model.pop().ticket
        elif action == "remove" and model.waiting:
            gone = model.waiting.pop(pick % len(model.waiting))
            mine = next(one for one in queue if one.ticket == gone.ticket)
            queue.remove(mine)
            with pytest.raises(KeyError):
                queue.remove(mine)
        assert len(queue) == len(model.waiting) == len(list(queue))
        first = model.first()
        assert (queue.peek() and queue.peek().ticket) == (first and first.ticket)


def test_an_empty_queue_says_so():
    queue = FairQueue()
    assert queue.peek() is None
    with pytest.raises(IndexError):
        queue.pop()


def test_a_lower_number_goes_first_whenever_it_comes():
    queue = FairQueue()
    for ticket, priority in enumerate([0, 5, -3, 0, -(2**31), 2**31 - 1]):
        queue.push(sequence(ticket, priority=priority))
    assert drained(queue) == [4, 2, 0, 3, 1, 5]


def serve(queue, count, cost):
    """Serve so many requests at so much each; how many each tenant got."""
    got = {}
    for _ in range(count):
        one = queue.pop()
        queue.accounts.charge(one.account, cost(one))
        got[one.tenant] = got.get(one.tenant, 0) + 1
    return got


def test_tenants_share_what_is_computed_not_how_often_they_ask():
    queue = FairQueue()
    for ticket in range(300):
        queue.push(sequence(ticket, tenant="many" if ticket % 3 else "big"))
    got = serve(queue, 100, lambda one: 30 if one.tenant == "big" else 10)
    assert got == {"big": 25, "many": 75}


def test_weights_scale_shares():
    queue = FairQueue(Accounts({"heavy": 3.0, "light": 1.0}.get))
    for ticket in range(200):
        queue.push(sequence(ticket, tenant="heavy" if ticket % 2 else "light"))
    assert serve(queue, 80, lambda one: 10) == {"heavy": 60, "light": 20}


@pytest.mark.parametrize("idle", ["never came", "was away"])
def test_idleness_saves_up_no_claim(idle):
    queue = FairQueue()
    for ticket in range(100):
        queue.push(sequence(ticket, tenant="busy"))
    if idle == "was away":
        queue.push(sequence(100, tenant="other"))
    serve(queue, 61, lambda one: 10)
    for ticket in range(101, 141):
        queue.push(sequence(ticket, tenant="other"))
    assert serve(queue, 40, lambda one: 10) == {"busy": 20, "other": 20}


def test_ageing_betters_the_class_step_by_step_up_to_the_cap():
    queue = FairQueue(aging_s=10.0, aging_cap=0)
    old = sequence(0, priority=3, now=0.0)
    queue.push(old)
    for now, effective in [(9.9, 3), (10.0, 2), (25.0, 1), (30.0, 0), (500.0, 0)]:
        queue.age(now)
        assert old.effective == effective
    assert old.priority == 3
    queue.push(sequence(1, priority=0, now=500.0))
    queue.push(sequence(2, priority=-1, now=500.0))
    queue.push(sequence(3, priority=1, now=500.0))
    assert drained(queue) == [2, 0, 1, 3], "among its new class it is the first to have come"


def test_ageing_does_not_touch_what_is_at_the_cap_or_better():
    queue = FairQueue(aging_s=1.0, aging_cap=0)
    for ticket, priority in enumerate([0, -2]):
        queue.push(sequence(ticket, priority=priority))
    queue.age(1000.0)
    assert [one.effective for one in sorted(queue, key=lambda one: one.ticket)] == [0, -2]


def test_what_returns_has_aged_meanwhile():
    queue = FairQueue(aging_s=10.0)
    one = sequence(0, priority=2)
    queue.push(one)
    assert queue.pop() is one
    queue.age(15.0)
    queue.push(one)
    assert one.effective == 1
    queue.age(20.0)
    assert one.effective == 0


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(-2, 4), st.floats(0, 50), st.booleans()), max_size=30), st.floats(0.1, 20))
def test_ageing_is_a_matter_of_waiting_alone(arrivals, aging_s):
    """However often it is looked at, a request's class is that of its wait."""
    often, seldom = FairQueue(aging_s=aging_s), FairQueue(aging_s=aging_s)
    now = 0.0
    mine, theirs = [], []
    for ticket, (priority, later, look) in enumerate(arrivals):
        now += later
        if look:
            often.age(now)
        for queue, kept in ((often, mine), (seldom, theirs)):
            kept.append(sequence(ticket, priority=priority, now=now))
            queue.push(kept[-1])
    often.age(now + 5.0)
    seldom.age(now + 5.0)
    assert [one.effective for one in mine] == [one.effective for one in theirs]
    assert all(min(one.priority, 0) <= one.effective <= one.priority for one in mine)
    assert drained(often) == drained(seldom)


def test_ten_thousand_waiting_cost_the_logarithm():
    """Counted in comparisons of turns and tickets, which is what a heap does."""
    queue = FairQueue()
    for ticket in range(10_000):
        queue.push(sequence(ticket, priority=ticket % 7, tenant=f"t{ticket % 500}"))
    counted = 0

    class Counting(int):
        def __lt__(self, other):
            nonlocal counted
            counted += 1
            return int(self) < int(other)

        __hash__ = int.__hash__

    for ticket in range(10_000, 10_100):
        one = sequence(Counting(ticket), priority=ticket % 7, tenant=f"t{ticket % 500}")
        queue.push(one)
        queue.remove(one)
        queue.accounts.charge(queue.pop().account, 5)
    assert counted < 100 * 40


def test_many_removed_leave_nothing_behind():
    queue = FairQueue()
    keep = sequence(0)
    queue.push(keep)
    for ticket in range(1, 5000):
        one = sequence(ticket, priority=ticket % 3000)
        queue.push(one)
        queue.remove(one)
    assert len(queue) == 1 and queue.pop() is keep
    assert len(queue._classes) <= 600

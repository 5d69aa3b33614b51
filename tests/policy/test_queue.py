"""First come first served, also after removal and return."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.request import Request, SamplingParams
from headrace.policy.queue import FirstComeQueue
from headrace.policy.sequence import Sequence


def sequence(ticket):
    return Sequence.of(Request(str(ticket), [1], SamplingParams(), 4, 0), ticket)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove", "return"]), st.integers(0, 50))))
def test_it_behaves_as_a_sorted_list(program):
    queue, model, out, tickets = FirstComeQueue(), [], [], 0
    for action, pick in program:
        if action == "push":
            model.append(sequence(tickets))
            queue.push(model[-1])
            tickets += 1
        elif action == "return" and out:
            back = out.pop(pick % len(out))
            queue.push(back)
            model = sorted([*model, back], key=lambda one: one.ticket)
        elif action == "pop" and model:
            assert queue.peek() is model[0]
            out.append(queue.pop())
            assert out[-1] is model.pop(0)
        elif action == "remove" and model:
            gone = model.pop(pick % len(model))
            queue.remove(gone)
            with pytest.raises(KeyError):
                queue.remove(gone)
        assert len(queue) == len(model)
        assert queue.peek() is (model[0] if model else None)


def test_an_empty_queue_says_so():
    queue = FirstComeQueue()
    assert queue.peek() is None
    with pytest.raises(IndexError):
        queue.pop()

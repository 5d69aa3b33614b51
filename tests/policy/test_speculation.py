"""When guessing stops and is tried again, by what guesses bring and steps take; over an engine on a virtual clock."""

from __future__ import annotations

import pytest
from tests.engine.test_speculation import VOCAB, TimedExecutor, capacity, oracle

from headrace.core.config import Config
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.null_executor import NullExecutor
from headrace.policy.speculation import Proposal


def seconds(made, row_ms, drafter=None):
    device = TimedExecutor(capacity(200), row_ms)
    engine = Engine(device, Config(num_speculative_tokens=8), drafter=drafter)
    for request in made:
        engine.add(request, 0.0)
    while engine.has_work:
        engine.step(lambda: device.now)
    return device.now, engine


def requests(count, length=60):
    return [Request(f"r{i}", [1, 2, i], SamplingParams(), length, seed=i) for i in range(count)]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("row_ms", [0.2, 1.0, 10.0])
def test_guesses_that_are_always_wrong_cost_next_to_nothing(count, row_ms):
    made = requests(count)
    plain, _ = seconds(made, row_ms)
    drafted, engine = seconds(made, row_ms, oracle(made, 1))
    assert engine.drafting.proposed > 0 == engine.drafting.accepted
    assert drafted < 1.06 * plain, "60 tokens are few to make up for the first tries"


def test_a_request_that_fails_is_tried_ever_less_often():
    class Wrong:
        costly, copy = False, None

        def propose(self, contexts):
            return [Proposal([(int(context.tokens[-1]) + 1) % VOCAB], [0.5]) for context in contexts]

        def remember(self, namespace, tokens, prompt_len):
            pass

    device = TimedExecutor(capacity(200), 2.0)
    engine = Engine(device, Config(), drafter=Wrong())
    engine.add(requests(1)[0], 0.0)
    while engine.has_work:
        engine.step(lambda: device.now)
    tried = [step for step, rows in enumerate(device.rows) if step and rows > 1]
    assert 1 <= len(tried) < 10
    assert sum(step < 20 for step in tried) > sum(step >= 40 for step in tried)


def test_nothing_is_guessed_before_it_is_known_what_a_step_takes_without():
    device = NullExecutor(capacity())
    made = requests(2, 12)
    engine = Engine(device, Config(), drafter=oracle(made, 0))
    for request in made:
        engine.add(request, 0.0)
    batches = []
    submit = device.submit
    device.submit = lambda batch: (batches.append(batch), submit(batch))
    ticks = iter(range(10_000))
    while engine.has_work:
        engine.step(lambda: float(next(ticks)))
    first = next(i for i, batch in enumerate(batches) if batch.drafts is not None)
    assert any(len(batch.slots) == 2 and batch.counts.sum() == 2 for batch in batches[:first])

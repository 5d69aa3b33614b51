"""The latency model learns what steps take, keeps what it learnt, and is not upset by a step that stalled."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.batch import Batch
from headrace.policy.latency import LatencyModel, LinearPrior, StepWork

TRUTH = LinearPrior(step=5e-3, token=9e-4, request=0.0, context=8e-7, pair=2e-7, row=4e-4)


def decodes(draw):
    count = draw.randint(1, 32)
    return StepWork(count, count, count * draw.randint(50, 800), 0.0, count, count)


def mixed(draw):
    count, chunk = draw.randint(0, 31), draw.randint(2, 480)
    pairs = chunk * (draw.randint(0, 1500) + chunk / 2)
    return StepWork(count + chunk, count + 1, count * draw.randint(50, 800), pairs, count + 1, count + 1)


def worst(model, kind, truth=TRUTH):
    draw = random.Random(99)
    works = [kind(draw) for _ in range(50)]
    return max(abs(model.predict(work) - truth(work)) / truth(work) for work in works)


def teach(model, count, *, draw, share=0.1, truth=TRUTH, noise=0.03):
    for _ in range(count):
        work = mixed(draw) if draw.random() < share else decodes(draw)
        model.observe(work, truth(work) * draw.uniform(1 - noise, 1 + noise))


def test_work_is_what_a_batch_asks_for():
    numbers = [np.array(values, np.int32) for values in ([3, 0, 5], [9, 0, 4], [1, 6, 2], [0, 2, 2], [9, 4, 5])]
    slots, starts, counts, entries, positions = numbers
    sample = np.array([True, False, True])
    batch = Batch(1, slots, starts, counts, entries, positions, sample, np.full(3, -1, np.int32))
    assert StepWork.of(batch) == StepWork(9, 3, 10, 6 * 3 + 2 * 5, 3, 2, 2)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 300)), min_size=1, max_size=20))
def test_work_adds_up(entries):
    starts, counts = np.array(entries, np.int32).T
    at = np.arange(len(entries), dtype=np.int32)
    batch = Batch(1, at, starts, counts, at, starts, np.ones(len(at), np.bool_), at)
    work = StepWork.of(batch)
    singles = [start + 1 for start, count in entries if count == 1]
    chunks = [count * (start + count / 2) for start, count in entries if count > 1]
    assert (work.decode_context, work.prefill_pairs) == (sum(singles), pytest.approx(sum(chunks)))
    assert (work.tokens, work.requests) == (counts.sum(), len(entries))


def test_before_the_first_step_it_is_its_prior():
    model = LatencyModel(lambda work: 0.25 * work.tokens)
    assert model.error is None
    assert model.predict(StepWork(4, 4)) == 1.0


@pytest.mark.parametrize("prior", [LinearPrior(), LinearPrior(4e-5, 1e-6, 0, 0, 0, 0), LinearPrior(1, 1), TRUTH])
def test_it_learns_whatever_its_prior(prior):
    model = LatencyModel(prior)
    teach(model, 500, draw=random.Random(1))
    assert worst(model, decodes) < 0.05
    assert worst(model, mixed) < 0.05
    assert 0.005 < model.error < 0.03, "the noise of the steps"


def test_stalls_do_not_upset_it():
    model, draw = LatencyModel(), random.Random(2)
    for _ in range(30):
        teach(model, 20, draw=draw)
        work = decodes(draw)
        model.observe(work, TRUTH(work) * draw.choice([0.0, 30.0, 1000.0]))
    assert worst(model, decodes) < 0.1
    assert worst(model, mixed) < 0.1


def test_an_hour_of_decodes_does_not_make_it_forget_prompts():
    model, draw = LatencyModel(), random.Random(3)
    teach(model, 300, draw=draw, share=0.3)
    teach(model, 3000, draw=draw, share=0.0)
    assert worst(model, mixed) < 0.1


def test_it_follows_a_device_that_slows_down():
    model, draw = LatencyModel(), random.Random(4)
    teach(model, 500, draw=draw)
    slower = LinearPrior(*(2 * getattr(TRUTH, name) for name in ("step", "token", "request", "context", "pair", "row")))
    teach(model, 2000, draw=draw, share=0.2, truth=slower)
    assert worst(model, decodes, slower) < 0.1
    assert worst(model, mixed, slower) < 0.1


def test_more_work_is_never_predicted_to_take_less_time():
    model, draw = LatencyModel(), random.Random(5)
    for _ in range(200):
        model.observe(mixed(draw), draw.uniform(1e-3, 1.0))
    for _ in range(50):
        less = mixed(draw)
        more = StepWork(less.tokens + 5, less.requests, less.decode_context, less.prefill_pairs + 700, less.logit_rows)
        assert model.predict(more) >= model.predict(less) > 0


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_times_that_mean_nothing_are_refused(seconds):
    with pytest.raises(ValueError, match="seconds must be finite"):
        LatencyModel().observe(StepWork(1, 1), seconds)


def test_asking_for_the_error_learns_nothing():
    asked = []

    def prior(work):
        asked.append(work)
        return 1e-3 * work.tokens

    model = LatencyModel(prior)
    for step in range(40):
        model.observe(StepWork(1 + step % 3, 1 + step % 3), 2e-3)
    before = len(asked)
    assert model.error is not None
    assert len(asked) == before

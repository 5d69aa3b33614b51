"""Guessing ahead over a whole engine: with any drafter, however right or wrong, every request gets the tokens it would
have got, log-probabilities and ends included, at any depth, chunking and pressure."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle import Oracle

from headrace.core.config import Config
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.null_executor import Faults, NullExecutor, expected_tokens
from headrace.policy.speculation import Proposal
from headrace.worker.drafters.by_name import lookup_drafter
from headrace.worker.drafters.lookup import LookupDrafter

VOCAB = 50


def oracle(requests, wrong, windows=(None,)):
    return Oracle((r.prompt_ids + r.output_ids + expected_tokens(r, VOCAB, windows) for r in requests), wrong, VOCAB)


def run(engine, requests):
    """request_id -> (tokens, logprobs, finish reason)"""
    clock = count(0.0, 1e-3).__next__
    for request in requests:
        engine.add(request, 0.0)
    got = {r.request_id: ([], [], None) for r in requests}
    steps = 0
    while engine.has_work:
        steps += 1
        for delta in engine.step(clock):
            tokens, logprobs, _ = got[delta.request_id]
            got[delta.request_id] = (
                tokens + delta.token_ids,
                logprobs + (delta.logprobs or []),
                delta.finish_reason,
            )
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    return got, steps


def capacity(blocks=60, windows=(None,)):
    return Capacity(
        num_slots=4,
        block_size=4,
        num_blocks=(blocks,) * len(windows),
        windows=windows,
        max_model_len=64,
        vocab_size=VOCAB,
    )


def requests_of(draw, number):
    made = []
    for i in range(number):
        prompt = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12))
        most = draw(st.integers(1, 30))
        params = SamplingParams(
            max_tokens=most,
            logprobs=draw(st.sampled_from([None, 0, 2])),
            prompt_logprobs=draw(st.sampled_from([None, 1])),
            min_tokens=draw(st.integers(0, most)),
            stop_token_ids=draw(st.lists(st.integers(0, VOCAB - 1), max_size=12)),
        )
        given_most = draw(st.sampled_from([None, None, 0, 1, 3]))
        eos = tuple(draw(st.lists(st.integers(0, VOCAB - 1), max_size=2)))
        made.append(Request(f"r{i}", prompt, params, most, seed=i, eos_ids=eos, num_speculative_tokens=given_most))
    return made


@settings(max_examples=60)
@given(data=st.data(), wrong=st.integers(0, 6), depth=st.integers(1, 2), blocks=st.sampled_from([16, 20, 60]))
def test_no_token_changes(data, wrong, depth, blocks):
    windows = data.draw(st.sampled_from([(None,), (None, 8)]))
    made = requests_of(data.draw, data.draw(st.integers(1, 7)))
    has = capacity(blocks, windows)
    config = Config(
        max_num_batched_tokens=data.draw(st.sampled_from([6, 16, 64])),
        pipeline_depth=depth,
        num_speculative_tokens=data.draw(st.integers(1, 9)),
    )
    plain, _ = run(Engine(NullExecutor(has), config), made)
    drafted, _ = run(Engine(NullExecutor(has), config, drafter=oracle(made, wrong, windows)), made)
    assert drafted == plain
    for request in made:
        assert drafted[request.request_id][0] == expected_tokens(request, VOCAB, windows)


@pytest.mark.parametrize("depth", [1, 2])
def test_right_guesses_save_steps_and_wrong_ones_cost_none(depth):
    made = [Request(f"r{i}", [i, 2, 3], SamplingParams(), 40, seed=i) for i in range(3)]
    config = Config(pipeline_depth=depth, num_speculative_tokens=4)
    _, plain = run(Engine(NullExecutor(capacity()), config), made)
    engine = Engine(NullExecutor(capacity()), config, drafter=oracle(made, 0))
    _, few = run(engine, made)
    assert few < plain / 2
    assert engine.drafting.accepted == engine.drafting.proposed > 60
    _, many = run(Engine(NullExecutor(capacity()), config, drafter=oracle(made, 1)), made)
    assert many <= plain * depth + 1


@pytest.mark.parametrize("under_way", [1, 2])
def test_who_goes_on_beside_a_step_with_guesses_for_others_keeps_what_it_gains(under_way):
    made = [Request(f"r{i}", [i, 2, 3], SamplingParams(), 40, seed=i, num_speculative_tokens=4 * i) for i in range(2)]
    engine = Engine(NullExecutor(capacity()), Config(pipeline_depth=2), drafter=oracle(made, 0))
    clock = count(0.0, 1e-3).__next__
    got = {request.request_id: [] for request in made}
    for request in made:
        engine.add(request, 0.0)
    for turn in count():
        begun = [engine.begin_step(clock()) for _ in range(under_way if turn > 3 else 1)]
        for delta in (delta for _ in begun for delta in engine.finish_step(clock)):
            got[delta.request_id] += delta.token_ids
        if not engine.has_work:
            break
    assert got == {request.request_id: expected_tokens(request, VOCAB, (None,)) for request in made}
    assert engine.drafting.accepted


class TimedExecutor(NullExecutor):
    """Takes 4 ms for a step and `row_ms` for each row of it."""

    def __init__(self, has, row_ms):
        super().__init__(has)
        self.now, self.row_ms, self.rows = 0.0, row_ms, []

    def collect(self):
        rows = self._submitted[0].num_tokens
        self.rows.append(rows)
        self.now += 4e-3 + self.row_ms * 1e-3 * rows
        return super().collect()


@pytest.mark.parametrize(
    ("row_ms", "wrong", "least", "most"), [(0.5, 1, 1, 50), (0.5, 0, 300, 440), (0.5, 5, 200, 500), (20, 3, 0, 480)]
)
def test_what_is_guessed_follows_what_it_brings(row_ms, wrong, least, most):
    """Never right: soon not asked any more. Always right: as much as there is. Dear rows: hardly ever."""
    made = [Request(f"r{i}", [1, 2, i], SamplingParams(), 60, seed=i) for i in range(8)]
    device = TimedExecutor(capacity(200), row_ms)
    engine = Engine(device, Config(num_speculative_tokens=8), drafter=oracle(made, wrong))
    for request in made:
        engine.add(request, 0.0)
    while engine.has_work:
        engine.step(lambda: device.now)
    assert least <= engine.drafting.proposed <= most
    plain = TimedExecutor(capacity(200), row_ms)
    engine = Engine(plain, Config())
    for request in made:
        engine.add(request, 0.0)
    while engine.has_work:
        engine.step(lambda: plain.now)
    assert device.now <= plain.now * 1.03


def test_a_request_that_breaks_in_the_middle_of_its_guesses_ends_alone():
    good = Request("good", [1, 2, 3], SamplingParams(), 30, seed=1)
    bad = Request("bad", [4, 5], SamplingParams(), 30, seed=2)
    for faults in (lambda t: Faults(nan_token=t), lambda t: Faults(crash_token=t)):
        text = expected_tokens(bad, VOCAB)
        token = next(t for t in text[8:] if t not in text[:8] and t not in expected_tokens(good, VOCAB))
        engine = Engine(NullExecutor(capacity(), faults(token)), Config(), drafter=oracle([good, bad], 5))
        got, _ = run(engine, [good, bad])
        assert got["good"][0] == expected_tokens(good, VOCAB)
        assert got["bad"][0] == text[: len(got["bad"][0])]
        assert got["bad"][2] is FinishReason.ERROR


@pytest.mark.usefixtures("free_rows")
@pytest.mark.parametrize("depth", [1, 2])
def test_guesses_that_no_model_can_compute_and_that_do_not_come_true_break_nothing(depth):
    asked = [Request(f"r{i}", [i, 2, 3], SamplingParams(logprobs=0), 20, seed=i) for i in range(3)]
    texts = [expected_tokens(request, VOCAB) for request in asked]
    token = next(t for t in range(VOCAB) if t not in set().union(*texts))
    drafter = oracle(asked, 0)
    drafter.propose = lambda contexts: [Proposal([token] * context.most, [0.9] * context.most) for context in contexts]
    engine = Engine(NullExecutor(capacity(), Faults(nan_token=token)), Config(pipeline_depth=depth), drafter=drafter)
    got, _ = run(engine, asked)
    assert [got[request.request_id][0] for request in asked] == texts
    assert engine.drafting.proposed > 10 and not engine.drafting.accepted


@pytest.mark.usefixtures("free_rows")
@pytest.mark.parametrize("depth", [1, 2])
def test_what_one_tenant_was_answered_is_guessed_for_nobody_else(depth):
    """Asked the same, a tenant has its own earlier answer guessed; another tenant or salt what a stranger has."""
    engine = Engine(NullExecutor(capacity(200)), Config(pipeline_depth=depth), drafter=lookup_drafter("suffix"))

    def ask(name, tenant, salt=""):
        before = engine.drafting.accepted
        request = Request(name, [1, 2, 3], SamplingParams(), 40, seed=7, tenant=tenant, cache_salt=salt)
        got, _ = run(engine, [request])
        assert got[name][0] == expected_tokens(request, VOCAB)
        return engine.drafting.accepted - before

    first = ask("first", "a")
    assert ask("again", "a") > first + 20
    assert ask("other", "b") <= first
    assert ask("salted", "a", "salt") <= first
    assert ask("once more", "b") > first + 20


def test_what_the_suffix_drafter_remembers_is_bounded_whatever_tenants_ask():
    drafter = LookupDrafter(past_tokens=300)
    engine = Engine(NullExecutor(capacity(200)), Config(), drafter=drafter)
    for i in range(90):
        run(engine, [Request(f"r{i}", [1, 2, i % 50], SamplingParams(), 30, seed=i, tenant=f"t{i % 80}")])
    assert 200 < sum(len(text) for texts in drafter._past.values() for text in texts) <= 300
    assert len(drafter._past) <= 64
    assert len(drafter._own) <= 4

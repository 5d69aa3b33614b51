"""What is refused, why and until when; and that account is kept of what was taken, to the last token."""

from __future__ import annotations

import contextlib
import itertools
import re
from functools import partial

import pytest
from tests.engine.engine_driver import capacity, make_engine, request, run

from headrace.core.config import Config
from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import ErrorCode, FinishReason, Request, SamplingParams
from headrace.engine.drive import drive
from headrace.engine.engine import Engine
from headrace.engine.null_executor import NullExecutor
from headrace.policy.admission import Admission
from headrace.policy.block_manager import BlockManager
from headrace.policy.latency import LatencyModel, LinearPrior
from headrace.policy.limits import Limits, TenantLimits
from headrace.policy.quotas import Quotas
from headrace.policy.waiting_time import WaitingTime
from headrace.server.errors import describe

PRICES = LinearPrior(step=1.0, token=0.0, request=0.0, context=0.0, pair=0.0, row=0.0)


def check(prompt_len, max_tokens, *, num_blocks=8):
    blocks = BlockManager(
        num_slots=2,
        max_model_len=40,
        block_size=4,
        num_blocks=(num_blocks,),
        windows=(None,),
        reach=8,
        caching=True,
    )
    admission = Admission(
        max_model_len=40,
        vocab_size=10,
        max_queued_requests=3,
        max_queued_tokens=None,
        limits=Limits(),
        waiting_time=WaitingTime(LatencyModel(), slots=2, budget=8),
    )
    made = Request("r", [1] * prompt_len, SamplingParams(max_tokens=max_tokens), max_tokens, 0)
    admission.check_possible(made, blocks)


def test_the_limits_are_exact():
    check(33, 0)
    check(20, 13)
    check(1, 39, num_blocks=10)


@pytest.mark.parametrize(
    "prompt_len, max_tokens, num_blocks, field, words",
    [
        (0, 4, 8, "prompt", "at least one token"),
        (41, 0, 99, "prompt", "has 41 tokens.*at most 40"),
        (30, 11, 99, "max_tokens", "set max_tokens to at most 10"),
        (20, 14, 8, "max_tokens", "at most 33 tokens of one request"),
        (35, 1, 8, "prompt", "kv-cache-memory-bytes"),
    ],
)
def test_what_can_never_fit_is_refused_by_name(prompt_len, max_tokens, num_blocks, field, words):
    with pytest.raises(RequestError, match=words) as refusal:
        check(prompt_len, max_tokens, num_blocks=num_blocks)
    assert refusal.value.param == field
    assert refusal.value.status == 400


def engine_with(limits=None, *, slots=1, **settings):
    """Steps of a second each, as far as it knows."""
    return Engine(NullExecutor(capacity(slots=slots)), Config(**settings), prior=PRICES, limits=limits)


def refused(engine, one, now=0.0):
    with pytest.raises(OverloadedError) as refusal:
        engine.add(one, now)
    assert refusal.value.retry_after >= 1
    return refusal.value


def test_the_queue_is_bounded_beyond_what_the_next_step_takes():
    engine = engine_with(slots=2, max_queued_requests=3)
    for i in range(5):
        engine.add(request(f"r{i}", [1], 8), 0.0)
    assert "5 requests are waiting and at most 3 may" in refused(engine, request("late", [1], 4)).message
    engine.step(lambda: 0.0)
    assert "3 requests are waiting and at most 3 may" in refused(engine, request("late", [1], 4)).message
    engine.abort(["r4"], 0.0)
    engine.add(request("late", [1], 4), 0.0)
    assert len(run(engine)) == 6


def test_the_queue_is_bounded_in_prompt_tokens_too():
    engine = engine_with(max_queued_tokens=20)
    engine.add(request("first", [1] * 30, 4), 0.0)
    engine.step(lambda: 0.0)
    engine.add(request("any", [1] * 30, 4), 0.0)
    assert "would be more than 20 (--max-queued-tokens)" in refused(engine, request("more", [1], 4)).message
    engine.abort(["any"], 0.0)
    engine.add(request("a", [1] * 12, 4), 0.0)
    engine.add(request("b", [1] * 8, 4), 0.0)
    refused(engine, request("c", [1], 4))
    run(engine)
    engine.add(request("c", [1], 4), 0.0)


def test_a_preempted_request_waits_with_all_its_tokens():
    engine = make_engine(capacity(slots=2, blocks=8), max_queued_tokens=1, enable_prefix_caching=False)
    engine.add(request("a", [1] * 10, 20), 0.0)
    engine.add(request("b", [2] * 10, 20), 0.0)
    while not engine.stats().preemptions:
        engine.step(lambda: 0.0)
    message = refused(engine, request("c", [3], 4)).message
    tokens = int(message.split("prompts of ")[1].split()[0])
    assert 10 < tokens < 30
    run(engine)
    engine.add(request("c", [3], 4), 0.0)


def test_a_wait_beyond_the_deadline_is_refused_at_once_and_costs_nothing():
    engine = engine_with(Limits(TenantLimits(requests_per_minute=4)))
    clock = itertools.count(0.0, 0.5).__next__
    for _ in drive(engine, [request("like", [1], 10)], clock):
        pass
    engine.add(request("running", [1], 10), 0.0)
    engine.step(clock)
    engine.add(request("waiting", [1], 10), 0.0)
    for _ in range(9):
        assert refused(engine, request("hasty", [1], 4, deadline=5.0)).code == "deadline_exceeded"
    engine.add(request("patient", [1], 4, deadline=500.0), 0.0)
    assert refused(engine, request("fifth", [1], 4, deadline=500.0)).code == "rate_limit_exceeded"


def test_a_wait_shorter_than_a_tenth_of_a_second_is_told_in_milliseconds():
    engine = engine_with(max_queued_requests=1)
    engine.add(request("running", [1], 30), 0.0)
    engine.step(lambda: 0.0)
    engine.add(request("late", [1], 4, deadline=0.0003), 1.0)
    sent = {delta.request_id: delta for delta in engine.step(lambda: 1.0004)}
    assert "waited 0.4 ms" in sent["late"].error


@pytest.mark.parametrize(("at", "seconds"), [(0.0, 30), (3.2, 27), (29.7, 1)])
def test_the_seconds_that_are_told_are_those_of_the_header(at, seconds):
    quotas = Quotas(Limits(TenantLimits(requests_per_minute=2)))
    for _ in range(2):
        quotas.take("a", requests=1, tokens=0, now=0.0)
    with pytest.raises(OverloadedError) as refusal:
        quotas.check("a", requests=1, tokens=0, choices=1, now=at, end_after=1.0)
    told = int(re.search(r"try again in (\d+) s", refusal.value.message)[1])
    assert told == int(describe(refusal.value)[2]["Retry-After"]) == seconds


def test_one_that_waits_past_its_deadline_ends_alone_and_frees_its_place():
    engine = engine_with(max_queued_requests=1)
    engine.add(request("running", [1], 30), 0.0)
    engine.step(lambda: 0.0)
    engine.add(request("late", [1], 4, deadline=5.0), 1.0)
    assert engine.stats().waiting == 1
    engine.step(lambda: 5.9)
    assert engine.stats().waiting == 1
    sent = {delta.request_id: delta for delta in engine.step(lambda: 6.0)}
    assert sent["late"].finish_reason is FinishReason.ERROR
    assert sent["late"].code is ErrorCode.DEADLINE_EXCEEDED
    assert "waited 5.0 s" in sent["late"].error
    assert sent["running"].finish_reason is None
    engine.add(request("next", [1], 4), 6.0)
    assert run(engine)["next"].reason is FinishReason.LENGTH


def test_a_deadline_is_kept_once_the_request_runs():
    engine = engine_with()
    engine.add(request("r", [1], 10, deadline=1.0), 0.0)
    clock = itertools.count(0.0, 0.25).__next__
    ends = [delta.finish_reason for _ in range(20) for delta in engine.step(clock)]
    assert ends[-1] is FinishReason.LENGTH


def test_deadlines_do_not_pass_for_requests_that_were_preempted():
    engine = make_engine(capacity(slots=2, blocks=8), enable_prefix_caching=False)
    engine.add(request("a", [1] * 10, 20), 0.0)
    engine.add(request("b", [2] * 10, 20, deadline=1.0), 0.0)
    while not engine.stats().preemptions:
        engine.step(lambda: 0.5)
    sent = [delta for _ in range(100) for delta in engine.step(lambda: 9.0)]
    assert {delta.finish_reason for delta in sent} == {None, FinishReason.LENGTH}


def test_a_key_may_have_so_many_at_once_whether_they_wait_or_run():
    engine = engine_with(Limits(tenants={"alice": TenantLimits(concurrent_requests=2)}))
    engine.add(request("a", [1], 4, tenant="alice"), 0.0)
    engine.add(request("b", [1], 4, tenant="alice"), 0.0)
    error = refused(engine, request("c", [1], 4, tenant="alice"))
    assert error.code == "rate_limit_exceeded" and "'alice' may have 2 at once" in error.message
    engine.add(request("d", [1], 4, tenant="bob"), 0.0)
    engine.abort(["a"], 0.0)
    engine.add(request("c", [1], 4, tenant="alice"), 0.0)
    run(engine)
    with pytest.raises(RequestError, match=r"n .3. must be at most 2") as refusal:
        engine.add(request("n", [1], 4, tenant="alice", n=3), 0.0)
    assert (refusal.value.status, refusal.value.param) == (400, "n")


def test_choices_of_one_prompt_count_once():
    engine = engine_with(Limits(TenantLimits(requests_per_minute=1, tokens_per_minute=12)))
    for choice in range(3):
        engine.add(request(f"r-{choice}", [1] * 10, 2, n=3, choice=choice), 0.0)
    assert refused(engine, request("next", [1], 1), 0.0).code == "rate_limit_exceeded"


def test_tokens_a_minute_count_prompts_at_once_and_outputs_when_they_end():
    engine = engine_with(Limits(TenantLimits(tokens_per_minute=60)))
    engine.add(request("a", [1] * 20, 30), 0.0)
    refused(engine, request("b", [1] * 41, 4))
    run(engine)
    # 20 + 30 are used, so that 10 are left, and one more each second.
    error = refused(engine, request("b", [1] * 12, 4))
    assert error.retry_after == pytest.approx(2)
    engine.add(request("b", [1] * 12, 4), 2.0)
    with pytest.raises(RequestError, match="60 a minute") as refusal:
        engine.add(request("c", [1] * 61, 1), 1e6)
    assert refusal.value.param == "prompt"


def test_one_that_never_ran_costs_nothing():
    engine = engine_with(Limits(TenantLimits(requests_per_minute=2, tokens_per_minute=50)))
    engine.add(request("a", [1] * 10, 4), 0.0)
    engine.step(lambda: 0.0)
    for i in range(5):
        engine.add(request(f"w{i}", [1] * 40, 4), 0.0)
        engine.abort([f"w{i}"], 0.0)
    engine.add(request("w", [1] * 40, 4), 0.0)
    refused(engine, request("x", [1], 4))


@pytest.mark.parametrize("deadline", [None, 3.0])
def test_account_is_kept_of_everything_and_nothing_is_left(deadline):
    engine = engine_with(slots=2, max_queued_requests=3, max_queued_tokens=40)
    now = 0.0
    for i in range(60):
        now += 0.5
        with contextlib.suppress(OverloadedError):
            engine.add(request(f"r{i}", [1] * (i % 13 + 1), i % 7 + 1, deadline=deadline, priority=i % 3), now)
        if i % 5 == 0:
            engine.abort([f"r{i - 1}"], now)
        engine.step(partial(float, now))
        assert engine.stats().waiting == engine._admission.backlog.requests
    run(engine)
    assert engine._admission.backlog.by_priority() == {}
    assert not engine._admission._taken and not engine._admission._deadlines

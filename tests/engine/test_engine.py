"""The engine through its front door: what each kind of request is sent, and what is refused."""

import pytest
from tests.engine.engine_driver import capacity, collect, expected, make_engine, request, run

from headrace.core.config import Config
from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import FinishReason
from headrace.engine.engine import Engine
from headrace.engine.null_executor import Faults, NullExecutor
from headrace.policy.latency import LinearPrior, StepWork


@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_are_those_of_the_request_alone(depth):
    has = capacity()
    requests = [request(f"r{i}", range(1, 3 + 5 * i), 10, seed=i) for i in range(6)]
    sent = run(make_engine(has, pipeline_depth=depth, max_num_batched_tokens=7), requests)
    for one in requests:
        assert sent[one.request_id].tokens == expected(one, has)
        assert sent[one.request_id].reason is FinishReason.LENGTH


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_token_ends_it_and_is_the_last_token(depth):
    has = capacity()
    free = expected(request("r", [1, 2, 3], 20), has)
    stop = free[6]
    first = free.index(stop)
    for ending in ({"eos_ids": (stop,)}, {"stop_token_ids": (stop,)}):
        got = run(make_engine(has, pipeline_depth=depth), [request("r", [1, 2, 3], 20, **ending)])["r"]
        assert got.tokens == free[: first + 1]
        assert got.reason is FinishReason.STOP
        assert got.last.stop_token == stop


def test_many_stop_tokens_work_as_few_do():
    has = capacity()
    free = expected(request("r", [1, 2, 3], 20), has)
    stops = sorted(set(range(50)) - set(free[:5]))
    one = request("r", [1, 2, 3], 20, stop_token_ids=stops)
    got = run(make_engine(has), [one, request("other", [9], 20)])
    assert got["r"].tokens == expected(one, has)
    assert got["r"].reason is FinishReason.STOP
    assert len(got["r"].tokens) > 5
    assert len(got["other"].tokens) == 20


def test_min_tokens_bars_stops_until_then():
    has = capacity(vocab_size=3)
    one = request("r", [1, 2], 12, eos_ids=(0, 1), min_tokens=9)
    got = run(make_engine(has), [one])["r"]
    assert got.tokens == expected(one, has)
    assert set(got.tokens[:9]) == {2}


def test_max_tokens_0_generates_nothing():
    engine = make_engine()
    engine.add(request("r", [1, 2, 3], 0), 0.0)
    assert engine.has_work
    deltas = engine.step(lambda: 0.0)
    assert [(d.token_ids, d.finish_reason) for d in deltas] == [([], FinishReason.LENGTH)]
    assert not engine.has_work


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("max_tokens", [0, 4])
@pytest.mark.parametrize("depth", [1, 2])
def test_prompt_logprobs_cover_the_prompt_once(chunk, max_tokens, depth):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    engine = make_engine(max_num_batched_tokens=chunk, pipeline_depth=depth)
    run(engine, [request("warm", prompt, 4)])
    got = run(engine, [request("r", prompt, max_tokens, prompt_logprobs=2)])["r"]
    assert [scored.token for scored in got.prompt_logprobs] == prompt[1:]
    assert all(len(scored.top) == 2 for scored in got.prompt_logprobs)
    assert len(got.tokens) == max_tokens
    assert got.cached == 0, "prompt log-probabilities read nothing from the cache"
    whole = run(make_engine(), [request("r", prompt, max_tokens, prompt_logprobs=2)])["r"]
    assert got.prompt_logprobs == whole.prompt_logprobs


def test_a_prompt_of_one_token_has_no_prompt_logprobs():
    got = run(make_engine(), [request("r", [7], 0, prompt_logprobs=1)])["r"]
    assert got.prompt_logprobs == [] and got.reason is FinishReason.LENGTH


def test_logprobs_only_where_asked():
    sent = run(
        make_engine(), [request("a", [1], 3, logprobs=2), request("b", [2], 3), request("c", [3], 3, logprobs=0)]
    )
    assert [scored.token for scored in sent["a"].logprobs] == sent["a"].tokens
    assert [len(scored.top) for scored in sent["a"].logprobs] == [2, 2, 2]
    assert sent["b"].logprobs == []
    assert [scored.top for scored in sent["c"].logprobs] == [[], [], []]


def test_a_replayed_request_goes_on_exactly():
    has = capacity()
    tokens = expected(request("r", [5, 6], 12), has)
    for done in (1, 5, 11):
        got = run(make_engine(has), [request("r", [5, 6], 12, output_ids=tokens[:done])])["r"]
        assert got.tokens == tokens[done:]
    got = run(make_engine(has), [request("r", [5, 6], 12, output_ids=tokens)])["r"]
    assert got.tokens == [] and got.reason is FinishReason.LENGTH


def test_a_second_request_reads_the_first_ones_blocks():
    engine = make_engine()
    prompt = list(range(1, 14))
    first = run(engine, [request("a", prompt)])["a"]
    second = run(engine, [request("b", prompt)])["b"]
    assert second.tokens == first.tokens
    assert (first.cached, second.cached) == (0, 12)
    assert engine.stats().cached_tokens == 12


def test_all_but_the_last_prompt_token_may_hit():
    engine = make_engine()
    run(engine, [request("a", range(8))])
    assert run(engine, [request("b", range(8))])["b"].cached == 7


def test_generated_tokens_are_cached_too():
    has = capacity()
    engine = make_engine(has)
    first = run(engine, [request("a", [1, 2, 3], 9)])["a"]
    turn = [1, 2, 3, *first.tokens, 4, 4]
    assert run(engine, [request("b", turn)])["b"].cached == 11  # all but the last sample, which was never computed


def test_another_salt_shares_nothing():
    engine = make_engine()
    run(engine, [request("a", range(12), cache_salt="x")])
    assert run(engine, [request("b", range(12), cache_salt="y")])["b"].cached == 0
    assert run(engine, [request("c", range(12), cache_salt="x")])["c"].cached == 11


def test_without_prefix_caching_nothing_is_kept():
    engine = make_engine(enable_prefix_caching=False)
    run(engine, [request("a", range(12))])
    assert run(engine, [request("b", range(12))])["b"].cached == 0
    assert engine.stats().blocks_cached == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_not_finite_logits_end_that_request_alone(depth):
    has = capacity()
    requests = [request("good", [1, 2], 9), request("bad", [3, 49, 4], 9), request("worse", [3, 49], 9)]
    engine = make_engine(has, faults=Faults(nan_token=49), pipeline_depth=depth)
    free = expected(requests[0], has)
    assert 49 not in free
    sent = run(engine, requests)
    assert sent["good"].tokens == free
    assert sent["worse"].tokens == [] and sent["worse"].reason is FinishReason.ERROR
    assert "not finite" in sent["worse"].last.error
    assert engine.stats().blocks_used == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_not_finite_prompt_logits_end_a_scored_request(depth):
    engine = make_engine(faults=Faults(nan_token=49), pipeline_depth=depth)
    got = run(engine, [request("r", [3, 49, 4], 5, prompt_logprobs=0)])["r"]
    assert got.reason is FinishReason.ERROR and got.tokens == [] and got.prompt_logprobs == []
    assert engine.stats().generated_tokens == 0


def test_a_finished_requests_place_is_taken_in_the_next_step():
    engine = make_engine(capacity(slots=2))
    for i, length in enumerate((2, 6, 5, 5)):
        engine.add(request(f"r{i}", [1 + i], length), 0.0)
    while engine.has_work:
        sent = engine.step(lambda: 0.0)
        waiting = engine.stats().waiting
        if any(delta.finish_reason for delta in sent) and waiting:
            engine.begin_step(0.0)
            assert engine.stats().running == 2
            assert engine.stats().waiting == waiting - 1


def test_an_abort_frees_at_once_and_ends_with_the_next_step():
    engine = make_engine(capacity(slots=1))
    engine.add(request("a", range(10), 20), 0.0)
    engine.add(request("b", range(10), 20), 0.0)
    sent = {}
    collect(engine.step(lambda: 0.0), sent)
    engine.abort(["a", "b", "unknown"], 0.0)
    assert engine.stats().running == engine.stats().waiting == engine.stats().blocks_used == 0
    collect(engine.step(lambda: 0.0), sent)
    assert sent["a"].reason is sent["b"].reason is FinishReason.ABORT
    assert not engine.has_work
    assert engine.stats().finished == {"abort": 2}


def test_an_id_is_free_again_once_its_end_was_told():
    engine = make_engine()
    engine.add(request("a", [1], 20), 0.0)
    engine.abort(["a"], 0.0)
    with pytest.raises(RequestError, match="in use"):
        engine.add(request("a", [2], 3), 0.0)
    engine.step(lambda: 0.0)
    assert len(run(engine, [request("a", [2], 3)])["a"].tokens) == 3


def test_refusals_name_the_field():
    has = capacity(blocks=6, max_model_len=64)
    engine = make_engine(has, max_queued_requests=2)
    for bad, field in (
        (request("r", [], 4), "prompt"),
        (request("r", [50], 4), "prompt"),
        (request("r", [-1], 4), "prompt"),
        (request("r", [1] * 65, 4), "prompt"),
        (request("r", [1] * 60, 5), "max_tokens"),
        (request("r", [1] * 20, 6), "max_tokens"),
        (request("r", [1] * 30, 0, prompt_logprobs=0), "prompt"),
        (request("r", [1], 4, stop_token_ids=[50]), "stop_token_ids"),
    ):
        with pytest.raises(RequestError) as refusal:
            engine.add(bad, 0.0)
        assert refusal.value.param == field
    assert not engine.has_work
    engine.add(request("r", [1] * 20, 5), 0.0)
    with pytest.raises(RequestError, match="in use"):
        engine.add(request("r", [1], 5), 0.0)


def test_a_request_that_just_fits_runs():
    has = capacity(blocks=6, max_model_len=64)
    one = request("r", [1] * 20, 5)
    assert run(make_engine(has), [one])["r"].tokens == expected(one, has)


def test_a_full_queue_is_refused_with_a_time():
    engine = make_engine(capacity(slots=1), max_queued_requests=2)
    for i in range(3):
        engine.add(request(f"r{i}", [1], 30), 0.0)
    with pytest.raises(OverloadedError) as refusal:
        engine.add(request("late", [1], 4), 0.0)
    assert refusal.value.retry_after >= 1
    assert len(run(engine)) == 3


def test_stats_add_up():
    engine = make_engine()
    run(engine, [request("a", range(9), 4), request("b", range(20, 25), 6)])
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generated_tokens) == (14, 10)
    assert stats.finished == {"length": 2}
    assert stats.blocks_total == 200 and stats.blocks_used == 0 and stats.step >= 6


@pytest.mark.parametrize("depth", [1, 2])
def test_it_learns_how_long_steps_take(depth):
    takes = LinearPrior(step=0.25, token=0.0625, request=0, context=0, pair=0, row=0)

    class Paced(NullExecutor):
        """Collects a step the moment that it is done, and is at work on one at a time."""

        now = 0.0

        def collect(self):
            self.now += takes(StepWork.of(self._submitted[0]))
            return super().collect()

    executor = Paced(capacity())
    engine = Engine(executor, Config(pipeline_depth=depth, max_num_batched_tokens=8))
    for i in range(6):
        engine.add(request(f"r{i}", range(1, 3 + 5 * i), 12, seed=i), 0.0)
    while engine.has_work:
        engine.step(lambda: executor.now)
    assert engine.latency._observed == engine.stats().step
    assert engine.latency.error < 0.05
    for work in (StepWork(4, 4, 90, 0.0, 4, 4), StepWork(8, 4, 90, 25.0, 4, 4)):
        assert engine.latency.predict(work) == pytest.approx(takes(work), rel=0.05)

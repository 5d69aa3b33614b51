"""Figures read from a fake engine whose clock is known, so that each has one right value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.latency import measure_latency, percentile
from headrace.bench.perplexity import cut_windows, measure_perplexity
from headrace.bench.throughput import measure_throughput
from headrace.bench.timeline import watch
from headrace.bench.workload import Shape, random_requests
from headrace.core.errors import ConfigError, EngineError
from headrace.core.request import FinishReason, OutputDelta, Request, TokenLogprobs

VOCAB = 1000


class FakeEngine:
    """A prefill step of prefill_s, then one step of decode_s for each further token; a slow step may be named."""

    def __init__(self, prefill_s: float = 0.5, decode_s: float = 0.1, slow_step: int | None = None) -> None:
        self.now = 100.0
        self.prefill_s, self.decode_s, self.slow_step = prefill_s, decode_s, slow_step
        self.ran: list[Request] = []

    def clock(self) -> float:
        return self.now

    def drive(self, requests: list[Request]):
        self.ran += requests
        for step in range(requests[0].max_tokens):
            self.now += self.prefill_s if step == 0 else self.decode_s
            self.now += 2.0 if step == self.slow_step else 0.0
            last = step == requests[0].max_tokens - 1
            yield [
                OutputDelta(r.request_id, [7], finish_reason=FinishReason.LENGTH if last else None) for r in requests
            ]


def test_throughput_counts_the_run_and_not_the_warm_up():
    engine = FakeEngine()
    result = measure_throughput(engine.drive, Shape(4, 32, 11), VOCAB, engine.clock)
    assert result.elapsed_s == pytest.approx(0.5 + 10 * 0.1)
    assert result.output_tokens_per_s == pytest.approx(4 * 11 / 1.5)
    assert result.total_tokens_per_s == pytest.approx(4 * 43 / 1.5)
    assert result.requests == 4
    assert len(engine.ran) == 5


def test_latency_of_a_steady_stream():
    engine = FakeEngine()
    result = measure_latency(engine.drive, Shape(1, 32, 11), VOCAB, engine.clock)
    assert result.ttft_ms == pytest.approx(500)
    assert result.tpot_ms == pytest.approx(100)
    assert result.itl_ms == pytest.approx({"p50": 100, "p99": 100})
    assert result.max_stall_ms == pytest.approx(100)
    assert result.prefill_tokens_per_s == pytest.approx(64)
    assert result.decode_tokens_per_s == pytest.approx(10)


def test_latency_shows_a_stall():
    engine = FakeEngine(slow_step=60)
    result = measure_latency(engine.drive, Shape(2, 8, 101), VOCAB, engine.clock)
    assert result.max_stall_ms == pytest.approx(2100)
    assert result.itl_ms == pytest.approx({"p50": 100, "p99": 100})
    assert result.decode_tokens_per_s == pytest.approx(2 * 100 / 12)


def test_latency_of_a_single_token_has_no_gaps():
    engine = FakeEngine()
    result = measure_latency(engine.drive, Shape(1, 8, 1), VOCAB, engine.clock)
    assert (result.tpot_ms, result.max_stall_ms, result.decode_tokens_per_s) == (0, 0, 0)


def test_a_failed_request_is_no_measurement():
    def drive(requests):
        yield [OutputDelta(requests[0].request_id, finish_reason=FinishReason.ERROR, error="logits were not finite")]

    with pytest.raises(EngineError, match="logits were not finite"):
        watch(drive, random_requests(Shape(1, 4, 4), VOCAB), lambda: 0.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(1, 100))
def test_percentile_splits_the_values(values, percent):
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in ordered
    assert sum(v <= found for v in ordered) >= len(ordered) * percent / 100


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**40), st.integers(2, 5000))
def test_random_requests_repeat_and_stay_inside_the_vocabulary(count, length, output, seed, vocab):
    shape = Shape(count, length, output, seed)
    requests = random_requests(shape, vocab)
    assert requests == random_requests(shape, vocab)
    assert len({r.request_id for r in requests}) == count
    for request in requests:
        assert len(request.prompt_ids) == length
        assert all(0 <= token < vocab for token in request.prompt_ids)
        assert (request.max_tokens, request.params.temperature, request.eos_ids) == (output, 0.0, ())


@pytest.mark.parametrize(("shape", "says"), [(Shape(0, 1, 1), "num_prompts"), (Shape(1, 60, 5), "must fit")])
def test_impossible_shapes_are_refused(shape, says):
    with pytest.raises(ConfigError, match=says):
        shape.check(64)


def score_drive(logprob):
    """An engine that scores windows two positions a step, the last window first."""

    def drive(requests):
        for request in reversed(requests):
            for start in range(1, len(request.prompt_ids), 2):
                tokens = request.prompt_ids[start : start + 2]
                yield [
                    OutputDelta(
                        request.request_id, prompt_logprobs=[TokenLogprobs(t, logprob(t), 1, []) for t in tokens]
                    )
                ]

    return drive


def test_perplexity_is_the_exponential_of_the_mean():
    windows = [[1, 2, 3, 4], [5, 6, 7, 8]]
    seen: list[int] = []
    result = measure_perplexity(score_drive(lambda t: -math.log(t)), windows, seen.append)
    assert result.tokens == sum(seen) == 6
    assert result.perplexity == pytest.approx((2 * 3 * 4 * 6 * 7 * 8) ** (1 / 6))


def test_perplexity_of_a_uniform_model_is_its_vocabulary():
    result = measure_perplexity(score_drive(lambda t: -math.log(50)), [[0] * 30] * 3, lambda n: None)
    assert result.perplexity == pytest.approx(50)


def test_an_engine_that_loses_a_score_is_found_out():
    def drive(requests):
        yield [OutputDelta(requests[0].request_id, prompt_logprobs=[TokenLogprobs(1, -1.0, 1, [])])]

    with pytest.raises(EngineError, match="1 of 3 tokens were scored"):
        measure_perplexity(drive, [[1, 2, 3, 4]], lambda n: None)


def test_windows_do_not_overlap_and_the_rest_is_left():
    assert cut_windows(list(range(11)), 3, 20) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert cut_windows(list(range(11)), 3, 2) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("window", "windows"), [(12, 1), (1, 1), (4, 0)])
def test_windows_that_cannot_be_cut_are_refused(window, windows):
    with pytest.raises(ConfigError):
        cut_windows(list(range(11)), window, windows)

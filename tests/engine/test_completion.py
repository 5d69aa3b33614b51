"""build_requests and Choice: limits and seeds are resolved once for every door, and deltas add up to the answer."""

from __future__ import annotations

import pytest

from headrace.core.errors import RequestError
from headrace.core.request import FinishReason, OutputDelta, SamplingParams, TokenLogprobs
from headrace.engine.completion import Choice, Limits, SeedSource, build_requests, with_bad_words

LIMITS = Limits(max_model_len=32, vocab_size=100, eos_ids=(2,))


class Letters:
    def push(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + i) for i in ids)

    def flush(self) -> str:
        return ""


def build(prompt, limits=LIMITS, seeds=None, **params):
    return build_requests("r", prompt, SamplingParams(**params), limits, seeds or SeedSource(0))


def test_choices_share_a_seed_and_differ_in_choice():
    first, second = build([1, 2], n=2)
    assert (first.request_id, second.request_id) == ("r-0", "r-1")
    assert first.seed == second.seed
    assert (first.choice, second.choice) == (0, 1)


def test_a_given_seed_is_kept_and_missing_ones_follow_the_configuration():
    assert build([1], seed=-7)[0].seed == -7
    draws = [[build([1], seeds=source)[0].seed for _ in range(3)] for source in (SeedSource(5), SeedSource(5))]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 3


def test_output_is_limited_to_what_the_context_leaves():
    assert build([1] * 30, max_tokens=None)[0].max_tokens == 2
    assert build([1] * 30, max_tokens=1000)[0].max_tokens == 2
    assert build([1] * 32, max_tokens=0)[0].max_tokens == 0


def test_eos_is_left_out_when_ignored():
    assert build([1])[0].eos_ids == (2,)
    assert build([1], ignore_eos=True)[0].eos_ids == ()


@pytest.mark.parametrize(
    ("prompt", "params", "param", "words"),
    [
        ([], {}, "prompt", "no tokens"),
        ([100], {}, "prompt", "100 is not a token id"),
        ([-1], {}, "prompt", "-1 is not a token id"),
        ([2**70], {}, "prompt", "is not a token id"),
        ([1] * 32, {}, "prompt", "32 tokens"),
        ([1] * 33, {"max_tokens": 0}, "prompt", "32 or fewer"),
        ([1] * 30, {"min_tokens": 3}, "min_tokens", "leaves 2"),
        ([1], {"stop_token_ids": [100]}, "stop_token_ids", "100"),
        ([1], {"logit_bias": {100: 1.0}}, "logit_bias", "100"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(prompt, params, param, words):
    with pytest.raises(RequestError, match=words) as caught:
        build(prompt, **params)
    assert caught.value.param == param


def test_deltas_add_up():
    (request,) = build([1], logprobs=0, prompt_logprobs=0)
    choice = Choice.of(request, Letters())
    one, two = TokenLogprobs(0, -1.0, 1, []), TokenLogprobs(1, -0.5, 1, [])
    assert choice.cumulative_logprob is None
    choice.push(OutputDelta("r-0", [], prompt_logprobs=[two], cached_tokens=3))
    choice.push(OutputDelta("r-0", [0], [one]))
    assert not choice.finished
    choice.push(OutputDelta("r-0", [1], [two], finish_reason=FinishReason.LENGTH))
    assert (choice.text, choice.token_ids, choice.finish_reason) == ("ab", [0, 1], FinishReason.LENGTH)
    assert choice.logprobs == [one, two]
    assert choice.prompt_logprobs == [two]
    assert choice.cumulative_logprob == -1.5
    assert choice.cached_tokens == 3


def test_overrun_past_a_stop_string_is_dropped():
    (request,) = build([1], stop="b")
    choice = Choice.of(request, Letters())
    choice.push(OutputDelta("r-0", [0, 1, 2]))
    assert choice.finished
    choice.push(OutputDelta("r-0", [3], finish_reason=FinishReason.ABORT))
    assert (choice.text, choice.token_ids, choice.stop_reason) == ("a", [0, 1], "b")
    assert choice.finish_reason is FinishReason.STOP


def test_bad_words_become_their_tokens_with_and_without_a_space():
    def encode(text):
        return [ord(character) % 100 for character in text]

    params = with_bad_words(SamplingParams(bad_words=["ab", " ab", "c"]), encode)
    assert params.bad_words == ()
    assert params.bad_words_token_ids == ((97, 98), (32, 97, 98), (99,), (32, 99))
    assert with_bad_words(SamplingParams(), encode) == SamplingParams()


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [100]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": ["1"]}, "allowed_token_ids"),
        ({"allowed_token_ids": 5}, "allowed_token_ids"),
        ({"bad_words": "word"}, "bad_words"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": [5]}, "bad_words"),
        ({"bad_words": ["a" * 5000]}, "bad_words"),
        ({"bad_words": ["a"] * 1025}, "bad_words"),
        ({"bad_words_token_ids": [[]]}, "bad_words"),
        ({"bad_words_token_ids": [[100]]}, "bad_words"),
    ],
)
def test_tokens_that_are_kept_out_must_be_the_models(params, param):
    with pytest.raises(RequestError) as caught:
        build([1], **params)
    assert caught.value.param == param

"""SamplingParams as Python callers make them, where no JSON schema has looked at the types first: whatever is given
becomes a RequestError that names the field and stays short.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.core.errors import RequestError
from headrace.core.request import LONGEST_HINT, CacheHint, SamplingParams

NUMBERS = (
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
    "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs",
)  # fmt: skip
WRONG: tuple[Any, ...] = ("1", True, float("nan"), float("inf"), -(10**5000), b"1", [1], {}, 1j, object())
OTHERS = {
    "stop": (5, [1], [None], b"x", {"a"}, ["x" * 9000], [""], ["a"] * 65, [10**5000]),
    "stop_token_ids": (5, "12", {1}, [True], [1.0], [-1], ["1"]),
    "logit_bias": ([1], "x", {"5": 1.0}, {5: "x"}, {True: 1.0}, {5: float("nan")}, {-1: 0.0}),
    "ignore_eos": (1, "yes", None),
    "skip_special_tokens": (0, "no", None),
    "include_stop_str_in_output": (1, []),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field in NUMBERS for value in WRONG]
    + [(field, value) for field, values in OTHERS.items() for value in values],
    ids=lambda x: x if isinstance(x, str) and x else "_",
)
def test_wrong_values_are_refused_by_name(field, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert caught.value.message.startswith(field)
    assert len(caught.value.message) < 600


def test_no_stops_may_be_written_as_none():
    assert SamplingParams(stop=None, stop_token_ids=None) == SamplingParams()


@pytest.mark.parametrize("max_tokens", [2**63 - 1, 2**63, 10**400])
def test_any_number_of_tokens_crosses_process_borders(max_tokens):
    params = SamplingParams(max_tokens=max_tokens, min_tokens=5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_cache_hint_takes_seconds_or_true():
    assert CacheHint(pin=True).pin == LONGEST_HINT
    assert CacheHint(pin=False) == CacheHint() == CacheHint(pin=None)
    assert CacheHint(ttl_s=0.5).ttl_s == 0.5


@pytest.mark.parametrize(
    ("hint", "says"),
    [
        ({"pin": 0}, "cache_hint.pin"),
        ({"pin": -1.0}, "cache_hint.pin"),
        ({"pin": float("inf")}, "cache_hint.pin"),
        ({"pin": "1"}, "cache_hint.pin"),
        ({"ttl_s": 0}, "cache_hint.ttl_s"),
        ({"ttl_s": True}, "cache_hint.ttl_s"),
        ({"ttl_s": LONGEST_HINT * 2}, "cache_hint.ttl_s"),
        ({"pin": 5, "ttl_s": 5}, "not both"),
    ],
)
def test_a_wrong_cache_hint_is_refused_by_name(hint, says):
    with pytest.raises(RequestError, match=says):
        CacheHint(**hint)

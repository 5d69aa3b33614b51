"""Text completions: the four forms of a prompt, echo, log-probabilities, several choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from tests.server.fake_engine import BOS, CONTEXT, EOS, VOCAB, ByteTokenizer, FakeEngine, endless, say
from tests.server.serving import COMPLETIONS, MODEL, events, http, refusal
from tests.server.serving import settings as server_settings

from headrace.core.request import CacheHint
from headrace.server.app import create_app


async def complete(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """The whole answer, after checking that the streamed one adds up to the same."""
    response = await client.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    chunks = events((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
    for choice in answer["choices"]:
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        assert own[-1]["stop_reason"] == choice["stop_reason"]
        pieces = [c["logprobs"] for c in own if c["logprobs"] is not None]
        if choice["logprobs"] is None:
            assert pieces == []
            continue
        for name, values in choice["logprobs"].items():
            assert [v for piece in pieces for v in piece[name]] == values
    return answer


async def test_answer_has_openai_shape(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await complete(client, model=MODEL, prompt="hi")
    assert answer["id"].startswith("cmpl-")
    del answer["id"], answer["created"]
    assert answer == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [
            {"index": 0, "text": "Hello, world!", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 14,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "system_fingerprint": "fp-test",
    }


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
        (["only"], [[*b"only"]]),
    ],
)
async def test_prompt_forms(client: httpx.AsyncClient, engine: FakeEngine, prompt: Any, ids: list[list[int]]) -> None:
    response = await client.post(COMPLETIONS, json={"prompt": prompt})
    assert response.status_code == 200
    assert [r.prompt_ids for r in engine.added] == ids
    assert len(response.json()["choices"]) == len(ids)


async def test_answers_keep_the_order_of_prompts_and_choices(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = lambda request: [*bytes(request.prompt_ids), *f"{request.choice}".encode(), EOS]
    answer = await complete(client, prompt=["A", "B", "C"], n=2, logprobs=1)
    assert [c["text"] for c in answer["choices"]] == ["A0", "A1", "B0", "B1", "C0", "C1"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    assert all(len(c["logprobs"]["tokens"]) == 3 for c in answer["choices"])
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 18


async def test_sixteen_tokens_by_default(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = endless
    answer = await complete(client, prompt="hi")
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_limit_is_cut_to_the_context(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = endless
    answer = await complete(client, prompt="hi", max_tokens=CONTEXT)
    assert answer["usage"]["total_tokens"] == CONTEXT


async def test_echo_and_logprobs_of_the_prompt_alone(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await complete(client, prompt="abc", echo=True, max_tokens=0, logprobs=1)
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "abc",
            "logprobs": {
                "text_offset": [0, 1, 2],
                "token_logprobs": [None, -0.5, -0.5],
                "tokens": ["a", "b", "c"],
                "top_logprobs": [None, {"b": -0.5}, {"c": -0.5}],
            },
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert answer["usage"]["completion_tokens"] == 0


async def test_echo_with_choices_and_logprobs(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("xyz")
    answer = await complete(client, prompt="ab", echo=True, n=2, logprobs=5, max_tokens=3)
    for choice in answer["choices"]:
        assert choice["text"] == "abxyz"
        assert choice["logprobs"]["tokens"] == ["a", "b", "x", "y", "z"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]
        assert [t and len(t) for t in choice["logprobs"]["top_logprobs"]] == [None, 5, 5, 5, 5]


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": 2}])
async def test_echo_without_logprobs(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    answer = await complete(client, prompt=[97, 98], echo=True, **fields)
    assert answer["choices"][0]["text"] == "ab" + "He"[: fields["max_tokens"]]
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_text_offsets_count_characters_not_bytes(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("é!")
    logprobs = (await complete(client, prompt="ü", logprobs=0, echo=True))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xbc", "bytes:\\xc3", "bytes:\\xa9", "!", "<eos>"]
    assert logprobs["text_offset"] == [0, 0, 1, 1, 2, 3]


async def test_logprobs_zero_has_the_token_itself(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    logprobs = (await complete(client, prompt="hi", logprobs=0, max_tokens=2))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"H": -0.5}, {"e": -0.5}]


async def test_stop_string_in_the_prompt_does_not_stop(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("more END rest")
    answer = await complete(client, prompt="the END ", echo=True, stop="END")
    assert answer["choices"][0]["text"] == "the END more "


async def test_stop_string_can_be_kept(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("more END rest")
    answer = await complete(client, prompt="x", stop="END", include_stop_str_in_output=True)
    assert answer["choices"][0]["text"] == "more END"


async def test_overrun_past_a_stop_is_in_neither_usage_nor_logprobs(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.reply, engine.per_delta = say("ab|cdefgh"), 6
    answer = await complete(client, prompt="x", stop="|", logprobs=0)
    assert answer["choices"][0]["text"] == "ab"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "b", "|"]
    assert answer["usage"]["completion_tokens"] == 3


async def test_min_tokens_and_ignore_eos_reach_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await complete(client, prompt="x", min_tokens=4, ignore_eos=True)
    assert engine.added[0].params.min_tokens == 4
    assert engine.added[0].eos_ids == ()


async def test_fields_reach_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
    }
    body = {
        "prompt": "x",
        **fields,
        "seed": 42,
        "logit_bias": {"65": 3},
        "cache_salt": "s",
        "cache_hint": {"ttl_s": 9},
        "num_speculative_tokens": 2,
    }
    await client.post(COMPLETIONS, json=body)
    request = engine.added[0]
    assert {name: getattr(request.params, name) for name in fields} == fields
    assert request.params.logit_bias == {65: 3}
    assert (request.seed, request.cache_salt, request.cache_hint) == (42, "s", CacheHint(ttl_s=9))
    assert request.num_speculative_tokens == 2


async def test_models_defaults_apply_where_the_client_is_silent(
    make_app: Callable[..., Starlette], engine: FakeEngine
) -> None:
    async with http(make_app(sampling_defaults=(("temperature", 0.25), ("top_k", 9)))) as client:
        await client.post(COMPLETIONS, json={"prompt": "x", "top_k": 5, "temperature": None})
    assert (engine.added[0].params.temperature, engine.added[0].params.top_k) == (0.25, 5)


async def test_seeds_are_drawn_from_the_configured_one(make_app: Callable[..., Starlette], engine: FakeEngine) -> None:
    for _ in range(2):
        async with http(make_app(seed=7)) as client:
            await client.post(COMPLETIONS, json={"prompt": "x"})
            await client.post(COMPLETIONS, json={"prompt": "x"})
    seeds = [r.seed for r in engine.added]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]


async def test_bos_is_the_clients_choice(make_app: Callable[..., Starlette], engine: FakeEngine) -> None:
    async with http(make_app(tokenizer=ByteTokenizer(bos=True))) as client:
        for more in ({}, {"add_special_tokens": False}):
            assert (await client.post(COMPLETIONS, json={"prompt": "a", **more})).status_code == 200
        assert (await client.post(COMPLETIONS, json={"prompt": ""})).status_code == 200
    assert [r.prompt_ids for r in engine.added] == [[BOS, 97], [97], [BOS]]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (None, "required"),
        ("", "no tokens"),
        ([""], "no tokens"),
        (["a", ""], "prompt[1]"),
        ([], "empty list"),
        ([[]], "no tokens"),
        ([[], [1]], "no tokens"),
        ([[300]], "300 is not a token id"),
        ([-1], "-1 is not a token id"),
        ([[5279552648203111001]], "5279552648203111001"),
        ([10**30], "not a token id"),
        ([True], "list of token ids"),
        ([1.0], "list of token ids"),
        ([1, "a"], "list of token ids"),
        ([[1], "a"], "list of token ids"),
        ([[["a"]]], "list of token ids"),
        ([None], "list of token ids"),
        (5, "prompt"),
        ({"text": "a"}, "prompt"),
        ("x" * (CONTEXT + 50), f"250 tokens, but this model's context is {CONTEXT}"),
        (["x"] * 1025, "at most 1024"),
    ],
)
async def test_bad_prompts_are_refused_and_the_next_works(
    client: httpx.AsyncClient, engine: FakeEngine, prompt: Any, said: str
) -> None:
    for stream in (False, True):
        error = refusal(await client.post(COMPLETIONS, json={"prompt": prompt, "stream": stream}))
        assert said in error["message"]
        assert error["param"] == "prompt"
    assert engine.added == []
    assert (await client.post(COMPLETIONS, json={"prompt": "ok"})).status_code == 200


async def test_one_request_asks_for_a_bounded_number_of_answers(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    error = refusal(await client.post(COMPLETIONS, json={"prompt": ["a"] * 103, "n": 10, "max_tokens": 1}))
    assert error["param"] == "n"
    assert "at most 1024" in error["message"]
    assert engine.added == []


@given(
    tokens=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    per_delta=st.integers(1, 9),
    stop=st.none() | st.text(st.sampled_from("ab\x00é"), min_size=1, max_size=3),
    skip=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_text_and_streamed_alike(tokens: list[int], per_delta: int, stop: str | None, skip: bool) -> None:
    async def run() -> dict[str, Any]:
        engine = FakeEngine()
        engine.reply, engine.per_delta = lambda request: tokens, per_delta
        async with http(create_app(engine, ByteTokenizer(), None, server_settings())) as client:
            body = {"prompt": "x", "max_tokens": 40, "logprobs": 2, "stop": stop, "skip_special_tokens": skip}
            return await complete(client, **body)

    choice = asyncio.run(run())["choices"][0]
    assert stop is None or stop not in choice["text"]
    assert len(choice["logprobs"]["tokens"]) <= len(tokens)

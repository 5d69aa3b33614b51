"""Public faults 34 to 42 and their neighbours, through the API over a tiny decoder on the kernels: nothing that happens
beside a request, or happened before it, changes a bit of its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.server.local_engine import BLOCK, Faults, LocalEngine, app_over, null_executor, tiny_executor
from tests.server.serving import COMPLETIONS, events, http, refusal

from headrace.worker.drafters.by_name import lookup_drafter

GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 3, "return_token_ids": True}
SAMPLED = {**GREEDY, "temperature": 1.3, "top_p": 0.9, "seed": 11}
PREFIX = "It was a dark and stormy night; the rain fell in torrents"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with app_over(LocalEngine(tiny_executor())) as app, http(app) as client:
        yield client


async def choices(client: httpx.AsyncClient, prompt: Any, **fields: Any) -> Any:
    """Everything about the answers but how much of the prompt was cached."""
    response = await client.post(COMPLETIONS, json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"]


@pytest.mark.parametrize("fields", [GREEDY, SAMPLED, {**GREEDY, "echo": True}], ids=["greedy", "seeded", "echoed"])
async def test_case_34_the_same_request_again_cold_warm_and_after_others(
    client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    first = await choices(client, PREFIX, **fields)
    assert await choices(client, PREFIX, **fields) == first
    stopped = {"max_tokens": 30, "stop_token_ids": list(range(0, 250, 3)), "temperature": 1}
    await asyncio.gather(*(choices(client, PREFIX[:n], **stopped, seed=n) for n in range(5, 45, 5)))
    assert await choices(client, PREFIX, **fields) == first
    beside = await asyncio.gather(*(choices(client, PREFIX, **fields) for _ in range(6)))
    assert beside == [first] * 6


@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
async def test_case_35_an_echo_with_logprobs_of_a_cached_prompt_has_every_token(
    client: httpx.AsyncClient, length: int
) -> None:
    await choices(client, PREFIX, max_tokens=1)
    fields = {"max_tokens": 2, "ignore_eos": True, "temperature": 0, "logprobs": 2, "echo": True}
    for _ in range(3):
        (choice,) = await choices(client, PREFIX[:length], **fields)
        assert len(choice["logprobs"]["tokens"]) == length + 2
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert None not in choice["logprobs"]["token_logprobs"][1:]
    (scored,) = await choices(client, PREFIX[:length], max_tokens=0, prompt_logprobs=2)
    assert len(scored["prompt_logprobs"]) == length


async def test_case_36_overlapping_prompts_in_another_order(client: httpx.AsyncClient) -> None:
    prompts = [PREFIX[:n] for n in (20, 33, 48, 57)]
    fields = {"max_tokens": 0, "echo": True, "logprobs": 2}
    forth = [(await choices(client, p, **fields))[0]["logprobs"]["token_logprobs"] for p in prompts]
    async with app_over(LocalEngine(tiny_executor())) as app, http(app) as other:
        back = [(await choices(other, p, **fields))[0]["logprobs"]["token_logprobs"] for p in reversed(prompts)]
        at_once = [c["logprobs"]["token_logprobs"] for c in await choices(other, prompts, **fields)]
    assert forth == back[::-1] == at_once
    assert all(long[:20] == forth[0] for long in forth)


async def test_case_37_a_seeded_request_beside_unseeded_ones(client: httpx.AsyncClient) -> None:
    alone = await choices(client, PREFIX, **SAMPLED)
    others = [choices(client, PREFIX, max_tokens=20, temperature=1.5) for _ in range(5)]
    beside, *_ = await asyncio.gather(choices(client, PREFIX, **SAMPLED), *others)
    assert beside == alone


@pytest.mark.usefixtures("free_rows")
@pytest.mark.parametrize("method", ["ngram", "suffix"])
async def test_case_38_speculation_against_plain(client: httpx.AsyncClient, method: str) -> None:
    long = {"max_tokens": 60, "prompt_logprobs": 1}
    text = PREFIX * 2
    (plain,) = await choices(client, text, **{**GREEDY, **long})
    asked = [
        {**GREEDY, **long},
        {**SAMPLED, **long, "n": 2, "frequency_penalty": 0.4, "min_p": 0.01},
        {**SAMPLED, **long, "logit_bias": {"97": 4, "98": 4}},
        {**GREEDY, **long, "stop": [plain["text"][30:33]], "min_tokens": 5},
    ]
    engine = LocalEngine(tiny_executor(), lookup_drafter(method))
    async with app_over(engine) as app, http(app) as guessing:
        for fields in asked:
            expected = await choices(client, text, **fields)
            assert await choices(guessing, text, **fields) == expected
        together = await asyncio.gather(*(choices(guessing, text, **fields) for fields in asked))
    assert together == [await choices(client, text, **fields) for fields in asked]
    assert engine.engine.drafting.accepted > 0 < engine.engine.drafting.proposed - engine.engine.drafting.accepted


@pytest.mark.parametrize("fields", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
async def test_case_39_a_pool_that_forces_preemption(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    long = {**fields, "max_tokens": 60}
    prompts = [f"{n}: {PREFIX}" for n in range(6)]
    alone = [(await choices(client, p, **long))[0] for p in prompts]
    tight = LocalEngine(tiny_executor(blocks=256 // BLOCK + 3))
    async with app_over(tight) as app, http(app) as other:
        together = await asyncio.gather(*(choices(other, p, **long) for p in prompts))
        assert [c[0] for c in together] == alone
        assert tight.engine.stats().preemptions > 0
        assert tight.idle


async def test_case_40_logits_that_are_not_finite_end_their_request_alone() -> None:
    engine = LocalEngine(null_executor(faults=Faults(nan_token=ord("N"))))
    async with app_over(engine) as app, http(app) as client:
        fine = {"prompt": "fine", "max_tokens": 30, "ignore_eos": True, "seed": 1, "temperature": 1}
        alone = (await client.post(COMPLETIONS, json=fine)).json()["choices"][0]["text"]
        beside = asyncio.create_task(client.post(COMPLETIONS, json=fine))
        error = refusal(await client.post(COMPLETIONS, json={"prompt": "bad N"}), 500)
        assert "not finite" in error["message"]
        assert error["type"] == "server_error"
        (event,) = events((await client.post(COMPLETIONS, json={"prompt": "N", "stream": True})).text)
        assert event["error"] == error
        assert (await beside).json()["choices"][0]["text"] == alone
        assert engine.idle


async def test_case_40_a_step_that_raises_ends_its_request_alone() -> None:
    engine = LocalEngine(null_executor(faults=Faults(crash_token=ord("C"))))
    async with app_over(engine) as app, http(app) as client:
        fine = {"prompt": "fine", "max_tokens": 10, "ignore_eos": True, "seed": 1, "temperature": 1}
        alone = (await client.post(COMPLETIONS, json=fine)).json()["choices"][0]["text"]
        beside = asyncio.create_task(client.post(COMPLETIONS, json=fine))
        error = refusal(await client.post(COMPLETIONS, json={"prompt": "C"}), 500)
        assert "RuntimeError" not in error["message"] and "slot" not in error["message"]
        assert (await beside).json()["choices"][0]["text"] == alone


async def test_case_42_another_salt_shares_nothing_and_changes_nothing(client: httpx.AsyncClient) -> None:
    async def cached(**fields: Any) -> tuple[int, Any]:
        body = {"prompt": PREFIX, **GREEDY, **fields}
        answer = (await client.post(COMPLETIONS, json=body)).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"]

    nothing, text = await cached()
    seen = [await cached(cache_salt=salt) for salt in ("a", "b", "a ", "A", "\u00e4")]
    again = [await cached(cache_salt="a"), await cached()]
    assert nothing == 0 and [hit for hit, _ in seen] == [0] * 5
    assert all(hit >= BLOCK for hit, _ in again)
    assert all(answer == text for _, answer in (*seen, *again))


async def test_choices_of_one_prompt_share_its_blocks(client: httpx.AsyncClient) -> None:
    """Neighbours of case 33: eight choices of a long prompt fit where eight prompts would not, and compute it once."""
    prompt = PREFIX * 4
    engine = LocalEngine(null_executor(blocks=-(-len(prompt) // BLOCK) + 8 * 3, slots=8))
    async with app_over(engine) as app, http(app) as other:
        body = {"prompt": prompt, "n": 8, "max_tokens": 8, "temperature": 1, "ignore_eos": True, "seed": 1}
        answer = (await other.post(COMPLETIONS, json=body)).json()
        assert len({c["text"] for c in answer["choices"]}) > 1
        stats = engine.engine.stats()
        assert stats.preemptions == 0
        assert stats.cached_tokens >= 7 * (len(prompt) // BLOCK * BLOCK)
        alone = [
            (await other.post(COMPLETIONS, json={**body, "n": n})).json()["choices"][-1]["text"] for n in (1, 3, 8)
        ]
    assert alone == [answer["choices"][n - 1]["text"] for n in (1, 3, 8)]

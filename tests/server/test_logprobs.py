"""Log-probabilities through the API, over a tiny decoder on the kernels: of the logits that were sampled from, the same
when the text is scored afterwards, finite, and with bytes that add up to the text.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.server.local_engine import LocalEngine, app_over, tiny_executor
from tests.server.serving import CHAT, COMPLETIONS, events, http, user

PROMPT = "the mill and its race"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.4, "seed": 3},
    "cut and penalized": {"temperature": 1.2, "seed": 4, "top_p": 0.8, "top_k": 40, "repetition_penalty": 1.5},
    "biased and masked": {"temperature": 1, "seed": 5, "logit_bias": {"65": 50}, "bad_words": ["A"], "min_p": 0.01},
    "of few tokens": {"temperature": 1, "seed": 6, "allowed_token_ids": [65, 66, 200, 201, 250]},
}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with app_over(LocalEngine(tiny_executor())) as app, http(app) as client:
        yield client


@pytest.mark.parametrize("way", WAYS)
async def test_what_was_sampled_is_what_is_scored_afterwards(client: httpx.AsyncClient, way: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "logprobs": 20, "return_token_ids": True}
    choice = (await client.post(COMPLETIONS, json={**body, **WAYS[way]})).json()["choices"][0]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    again = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 20}
    scored = (await client.post(COMPLETIONS, json=again)).json()["choices"][0]["logprobs"]
    begin = len(choice["prompt_token_ids"])
    assert choice["logprobs"]["token_logprobs"] == scored["token_logprobs"][begin:]
    assert choice["logprobs"]["top_logprobs"] == scored["top_logprobs"][begin:]


@pytest.mark.parametrize("way", WAYS)
async def test_they_are_finite_fall_and_are_probabilities(client: httpx.AsyncClient, way: str) -> None:
    body = user("hi", max_tokens=20, ignore_eos=True, logprobs=True, top_logprobs=20, **WAYS[way])
    content = (await client.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 20
    for token in content:
        values = [t["logprob"] for t in token["top_logprobs"]]
        assert len(values) == 20
        assert values == sorted(values, reverse=True)
        assert all(math.isfinite(v) and v <= 0 for v in [*values, token["logprob"]])
        assert sum(map(math.exp, values)) < 1 + 1e-4
        same = [t["logprob"] for t in token["top_logprobs"] if t["bytes"] == token["bytes"]]
        assert same in ([token["logprob"]], [])
        assert same or token["logprob"] <= values[-1]


async def test_bytes_add_up_to_the_text_whatever_they_are(client: httpx.AsyncClient) -> None:
    body = user("hi", max_tokens=60, ignore_eos=True, logprobs=True, temperature=2, seed=9, skip_special_tokens=False)
    choice = (await client.post(CHAT, json=body)).json()["choices"][0]
    content = choice["logprobs"]["content"]
    whole = b"".join(bytes(t["bytes"]) for t in content)
    assert whole.decode("utf-8", "replace") == choice["message"]["content"]
    partial = [t for t in content if t["token"].startswith("bytes:")]
    assert partial, "no token is part of a character"
    assert all(t["token"] == "bytes:" + "".join(f"\\x{b:02x}" for b in t["bytes"]) for t in partial)
    chunks = [c["choices"][0] for c in events((await client.post(CHAT, json={**body, "stream": True})).text)]
    assert [t for c in chunks for t in (c["logprobs"] or {"content": []})["content"]] == content

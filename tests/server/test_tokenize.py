"""/tokenize and /detokenize in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import BOS, CONTEXT, EOS, VOCAB, ByteTokenizer
from tests.server.serving import http, refusal

MESSAGE = {"role": "user", "content": "a"}


async def test_text_there_and_back(client: httpx.AsyncClient) -> None:
    shown = (await client.post("/tokenize", json={"prompt": "né"})).json()
    assert shown == {"count": 3, "max_model_len": CONTEXT, "tokens": [110, 195, 169], "token_strs": None}
    assert (await client.post("/detokenize", json={"tokens": shown["tokens"]})).json() == {"prompt": "né"}


async def test_token_names(client: httpx.AsyncClient) -> None:
    shown = (await client.post("/tokenize", json={"prompt": "né", "return_token_strs": True})).json()
    assert shown["token_strs"] == ["n", "bytes:\\xc3", "bytes:\\xa9"]


async def test_special_tokens_show_when_detokenized(client: httpx.AsyncClient) -> None:
    assert (await client.post("/detokenize", json={"tokens": [97, EOS]})).json() == {"prompt": "a<eos>"}
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_special_tokens_are_asked_for(make_app: Callable[..., Starlette]) -> None:
    async with http(make_app(tokenizer=ByteTokenizer(bos=True))) as client:
        assert (await client.post("/tokenize", json={"prompt": "a"})).json()["tokens"] == [BOS, 97]
        body = {"prompt": "a", "add_special_tokens": False}
        assert (await client.post("/tokenize", json=body)).json()["tokens"] == [97]


async def test_empty_text_has_no_tokens(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["count"] == 0


async def test_conversations(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "q"}]
    shown = (await client.post("/tokenize", json={"messages": messages})).json()
    assert bytes(shown["tokens"]) == b"user:q\nassistant:"
    body = {"messages": messages, "add_generation_prompt": False}
    assert bytes((await client.post("/tokenize", json=body)).json()["tokens"]) == b"user:q\n"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": [{"role": "x", "content": "a"}]}, "messages[0].role"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": "a", "surprise": 1}, "surprise"),
        ("/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/tokenize", {"prompt": "a", "tools": []}, None),
        ("/tokenize", {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "tools": [5]}, "tools"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1] * (2**18 + 1)}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
    ],
)
async def test_bad_bodies_are_refused(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str | None
) -> None:
    response = await client.post(path, json=body)
    if param is None:
        assert response.status_code == 200
    else:
        assert refusal(response)["param"] == param

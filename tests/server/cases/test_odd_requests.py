"""Odd requests, as scripts that try servers out send them: each is answered as OpenAI's and vLLM's servers answer it,
or refused in OpenAI's shape naming the field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.server.local_engine import MAX_LEN, LocalEngine, app_over
from tests.server.serving import CHAT, COMPLETIONS, http, refusal

ASKED = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with app_over(LocalEngine()) as app, http(app) as client:
        yield client


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": ASKED, "max_tokens": 4, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"prompt": "hi", "max_tokens": 4, **fields}


def said(*messages: Any) -> dict[str, Any]:
    return chat(messages=list(messages))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, said({"role": "alien", "content": "x"}), "messages[0].role"),
        (CHAT, said({"role": "User", "content": "x"}), "messages[0].role"),
        (CHAT, said({"role": ["user"], "content": "x"}), "messages[0].role"),
        (CHAT, said({"content": "x"}), "messages[0].role"),
        (CHAT, said({"role": "user", "content": None}), "messages[0].content"),
        (CHAT, said({"role": "user"}), "messages[0].content"),
        (CHAT, said({"role": "user", "content": {"type": "text", "text": "x"}}), "messages[0].content"),
        (CHAT, said({"role": "user", "content": ["x"]}), "messages[0].content[0]"),
        (CHAT, said({"role": "user", "content": [{"type": "text", "text": None}]}), "messages[0].content[0]"),
        (CHAT, said(*ASKED, {"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
        (CHAT, said(None), "messages[0]"),
        (CHAT, said(ASKED), "messages[0]"),
        (CHAT, said(), "messages"),
        (CHAT, chat(messages="hi"), "messages"),
        (CHAT, chat(messages={"role": "user", "content": "x"}), "messages"),
        (CHAT, {"prompt": "x"}, "prompt"),
        (COMPLETIONS, {"messages": ASKED}, "messages"),
        (CHAT, chat(max_tokens=10**6), "max_tokens"),
        (CHAT, chat(max_tokens=10**30), "max_tokens"),
        (CHAT, chat(max_tokens=MAX_LEN + 1), "max_tokens"),
        (CHAT, {"messages": ASKED, "max_completion_tokens": MAX_LEN + 1}, "max_completion_tokens"),
        (COMPLETIONS, text(max_tokens=MAX_LEN + 1), "max_tokens"),
        (CHAT, chat(max_tokens=4.5), "max_tokens"),
        (CHAT, chat(max_tokens="4"), "max_tokens"),
        (CHAT, chat(temperature="hot"), "temperature"),
        (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
        (CHAT, chat(logprobs=False, top_logprobs=2), "top_logprobs"),
        (CHAT, chat(logit_bias={"1": "1"}), "logit_bias"),
        (CHAT, chat(logit_bias=[1]), "logit_bias"),
        (CHAT, chat(stop=["a", None]), "stop"),
        (CHAT, chat(stop=5), "stop"),
        (CHAT, chat(stream_options={"include_usage": True}), "stream_options"),
        (CHAT, chat(stream="true"), "stream"),
        (CHAT, chat(stream=1), "stream"),
        (CHAT, chat(response_format="json"), "response_format"),
        (CHAT, chat(response_format={}), "response_format"),
        (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"name": "x"}}), "response_format"),
        (CHAT, chat(tool_choice="required"), "tool_choice"),
        (CHAT, chat(tool_choice="sometimes"), "tool_choice"),
        (CHAT, chat(tools="x"), "tools"),
        (CHAT, chat(tools=[{}]), "tools"),
        (CHAT, chat(functions=[{"name": "f"}]), "functions"),
        (COMPLETIONS, text(best_of=2), "best_of"),
        (COMPLETIONS, text(best_of=True), "best_of"),
        (COMPLETIONS, text(suffix="x"), "suffix"),
        (COMPLETIONS, text(echo="x"), "echo"),
        (COMPLETIONS, text(logprobs=True), "logprobs"),
        (COMPLETIONS, text(prompt=["a", 1]), "prompt"),
        (COMPLETIONS, text(prompt=["a", [1]]), "prompt"),
        (COMPLETIONS, text(prompt=[1.0]), "prompt"),
        (COMPLETIONS, text(prompt=[["a"]]), "prompt"),
        (COMPLETIONS, text(prompt={}), "prompt"),
        (CHAT, chat(model=5), "model"),
    ],
)
async def test_it_is_refused_by_name(client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str) -> None:
    assert refusal(await client.post(path, json=body))["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, said({"role": "user", "content": ""})),
        (CHAT, said({"role": "user", "content": "a\0b"})),
        (CHAT, said({"role": "system", "content": "x"})),
        (CHAT, chat(max_tokens=MAX_LEN)),
        (CHAT, chat(max_tokens=0)),
        (CHAT, chat(max_tokens=None)),
        (CHAT, chat(temperature=-0.0)),
        (CHAT, chat(temperature=1e-9)),
        (CHAT, chat(temperature=1)),
        (CHAT, chat(top_k=10**20)),
        (CHAT, chat(stop=[])),
        (CHAT, chat(stop=["a", "b", "c", "d", "e"])),
        (CHAT, chat(logit_bias={})),
        (CHAT, chat(tools=[])),
        (CHAT, chat(tool_choice="none")),
        (CHAT, chat(tool_choice="none", tools=[{"type": "function", "function": {"name": "f"}}])),
        (CHAT, chat(stream=None)),
        (CHAT, chat(model=None)),
        (CHAT, chat(echo=True)),
        (CHAT, chat(n=2, temperature=0)),
        (COMPLETIONS, text(best_of=1)),
        (COMPLETIONS, text(suffix="")),
        (COMPLETIONS, text(logprobs=0)),
        (COMPLETIONS, text(prompt=[[1], [2]])),
    ],
)
async def test_it_is_served(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert {choice["finish_reason"] for choice in answer.json()["choices"]} <= {"stop", "length"}


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ('"seed": 1' + "0" * 5000, "seed"),
        ('"temperature": -1e999', "temperature"),
        ('"stop": [[{"a": 1e999}]]', "stop"),
    ],
)
async def test_numbers_too_large_for_any_type_name_their_field(
    client: httpx.AsyncClient, value: str, param: str
) -> None:
    body = json.dumps(text())[:-1] + ", " + value + "}"
    response = await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    error = refusal(response)
    assert (error["param"], error["code"]) == (param, "invalid_json")


async def test_the_last_of_two_fields_of_one_name_counts(client: httpx.AsyncClient) -> None:
    body = json.dumps(text(temperature=0))[:-1] + ', "max_tokens": 2}'
    answer = await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert answer.json()["usage"]["completion_tokens"] == 2

"""Public faults 1 to 18 and their neighbours: what a client sends is served as asked or refused by name, over a real
engine, while another client's stream goes on unchanged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.server.fake_engine import BOS, EOS, VOCAB
from tests.server.local_engine import MAX_LEN, LocalEngine, app_over, tiny_executor
from tests.server.serving import CHAT, COMPLETIONS, events, http, refusal, served, user

NEIGHBOUR = {"prompt": "a neighbour", "max_tokens": 40, "temperature": 1, "seed": 5, "ignore_eos": True}
BOTH = [pytest.param(CHAT, user("hi", max_tokens=4), id="chat")]
BOTH += [pytest.param(COMPLETIONS, {"prompt": "hi", "max_tokens": 4}, id="completions")]


@pytest.fixture
async def engine() -> LocalEngine:
    return LocalEngine()


@pytest.fixture
async def client(engine: LocalEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with app_over(engine) as app, http(app) as client:
        yield client


async def refused(client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str, status: int = 400) -> None:
    """The body is refused naming param, streamed or not, while a neighbour's text stays what it is alone; the next
    request works and health stays true."""
    alone = (await client.post(COMPLETIONS, json=NEIGHBOUR)).json()["choices"][0]["text"]
    beside = asyncio.create_task(client.post(COMPLETIONS, json=NEIGHBOUR))
    for stream in (False, True):
        await asyncio.sleep(0)
        error = refusal(await client.post(path, json={**body, "stream": stream}), status)
        assert error["param"] == param, error
        assert "Traceback" not in error["message"] and "headrace/" not in error["message"]
    assert (await beside).json()["choices"][0]["text"] == alone
    assert (await client.post(COMPLETIONS, json={"prompt": "next", "max_tokens": 1})).status_code == 200
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("prompt", [[""], "", ["a", ""], ["", "a"], [[]], [], [[1], []]])
async def test_case_1_a_prompt_without_tokens(client: httpx.AsyncClient, prompt: Any) -> None:
    await refused(client, COMPLETIONS, {"prompt": prompt}, "prompt")


async def test_case_1_with_a_bos_an_empty_prompt_is_a_prompt() -> None:
    async with app_over(LocalEngine(), bos=True) as app, http(app) as client:
        answer = (await client.post(COMPLETIONS, json={"prompt": ["", "a"], "max_tokens": 1})).json()
        assert answer["usage"]["prompt_tokens"] == 1 + 2
        refusal(await client.post(COMPLETIONS, json={"prompt": "", "add_special_tokens": False}))


@pytest.mark.parametrize(
    "token", [VOCAB, VOCAB + 10, -1, 2**31, 2**32, 2**63, 5279552648203111001, 10**40, 1.5, True, None, {}]
)
async def test_case_2_a_token_that_the_model_does_not_have(client: httpx.AsyncClient, token: Any) -> None:
    for prompt in ([token], [1, token], [[1], [token]]):
        await refused(client, COMPLETIONS, {"prompt": prompt}, "prompt")


@pytest.mark.parametrize(("path", "body"), BOTH)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {str(VOCAB): 5}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"1": 1e9}),
        ("logit_bias", {"1": None}),
        ("logit_bias", {"": 1}),
        ("logit_bias", {"1.0": 1}),
        ("stop_token_ids", [VOCAB]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [[1]]),
        ("allowed_token_ids", [VOCAB]),
        ("token_ids_logprob", [-1]),
        ("logprob_start_len", 0),
        ("repetition_penalty", 0),
        ("repetition_penalty", -0.0),
        ("top_p", 0),
        ("top_p", -1),
        ("temperature", 5),
        ("temperature", 1e6),
        ("temperature", -1e-9),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("top_k", -2),
        ("n", 0),
        ("n", -1),
        ("n", 10**9),
        ("max_tokens", -1),
        ("min_tokens", 5),
        ("seed", 2**64),
    ],
)
async def test_cases_3_to_7_11_17_values_outside_their_range(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], field: str, value: Any
) -> None:
    await refused(client, path, {**body, field: value}, field)


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_case_4_a_stop_token_that_is_none_beside_a_neighbour(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    await refused(client, path, {**body, "stop_token_ids": [VOCAB + 1], "min_tokens": 1}, "stop_token_ids")
    assert (await client.post(path, json={**body, "stop_token_ids": [EOS, BOS], "min_tokens": 4})).status_code == 200


async def test_cases_8_and_16_echo_with_logprobs_and_nothing_generated() -> None:
    async with app_over(LocalEngine(tiny_executor())) as app, http(app) as client:
        body = {"prompt": "hello world", "echo": True, "max_tokens": 0, "logprobs": 1}
        answer = (await client.post(COMPLETIONS, json=body)).json()
        choice, usage = answer["choices"][0], answer["usage"]
        assert (choice["text"], choice["finish_reason"]) == ("hello world", "length")
        assert usage["completion_tokens"] == 0
        assert choice["logprobs"]["tokens"] == list("hello world")
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert all(-100 < value < 0 for value in choice["logprobs"]["token_logprobs"][1:])
        both = {**body, "max_tokens": 3, "n": 3, "logprobs": 5, "temperature": 1, "ignore_eos": True}
        choices = (await client.post(COMPLETIONS, json=both)).json()["choices"]
        assert [c["index"] for c in choices] == [0, 1, 2]
        for c in choices:
            assert c["logprobs"]["token_logprobs"][:11] == choice["logprobs"]["token_logprobs"]
            assert len(c["logprobs"]["tokens"]) == 14
            assert [t and len(t) >= 5 for t in c["logprobs"]["top_logprobs"]] == [None] + [True] * 13


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_case_9_no_tokens_asked_for_under_load(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    load = [asyncio.create_task(client.post(COMPLETIONS, json={**NEIGHBOUR, "seed": i})) for i in range(30)]
    await asyncio.sleep(0.01)
    choice = (await client.post(path, json={**body, "max_tokens": 0})).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice.get("text", choice.get("message", {}).get("content")) == ""
    assert [r.status_code for r in await asyncio.gather(*load)] == [200] * 30


async def test_case_10_without_max_tokens(client: httpx.AsyncClient) -> None:
    text = (await client.post(COMPLETIONS, json={"prompt": "hi", "ignore_eos": True})).json()["usage"]
    assert text["completion_tokens"] == 16
    chat = (await client.post(CHAT, json=user("hi", ignore_eos=True))).json()["usage"]
    assert chat["total_tokens"] == MAX_LEN


@pytest.mark.parametrize(
    "body", [{"n": 0}, {"temperature": 9}, {"unheard_of": 1}, {"messages": []}, {"stop": [""]}], ids=str
)
async def test_case_11_a_refused_stream_closes_its_socket(engine: LocalEngine, body: dict[str, Any]) -> None:
    async with app_over(engine) as app, served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = json.dumps(user("hi", stream=True) | body).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"data:" not in answer
        writer.close()


@pytest.mark.parametrize(("path", "body"), BOTH)
@pytest.mark.parametrize(
    "field",
    ["structured_outputs", "guided_json", "vllm_xargs", "kv_transfer_params", "stream_options", "response_format"],
)
@pytest.mark.parametrize("junk", [[], [[]], [{}], "", 0, -1, {"a": {"b": [None, {"c": []}]}}], ids=str)
async def test_case_12_junk_in_an_extension_field(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], field: str, junk: Any
) -> None:
    for stream in (False, True):
        error = refusal(await client.post(path, json={**body, field: junk, "stream": stream}))
        assert error["param"].split(".")[0] == field


async def test_case_13_two_live_requests_with_one_id(client: httpx.AsyncClient) -> None:
    bodies = [{**NEIGHBOUR, "prompt": p} for p in ("first", "second")]
    alone = [(await client.post(COMPLETIONS, json=body)).json()["choices"][0]["text"] for body in bodies]
    same = {"X-Request-Id": "same"}
    answers = await asyncio.gather(*(client.post(COMPLETIONS, json=body, headers=same) for body in bodies))
    assert [a.json()["choices"][0]["text"] for a in answers] == alone
    assert alone[0] != alone[1]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"prompt": "x"}', None, 415),
        (b'{"prompt": "x"}', "text/plain", 415),
        (b'{"prompt": "x", x}', "application/json", 400),
        (b"null", "application/json", 400),
        (b"", "application/json", 400),
        ('{"prompt": "你好"}'.encode("gbk"), "application/json", 400),
        ('{"prompt": "你好"}'.encode("utf-16"), "application/json; charset=utf-16", 400),
        (b'\xef\xbb\xbf{"prompt": "x"}', "application/json", 400),
        (b'{"prompt": "x", "prompt": "y"} trailing', "application/json", 400),
        (b"prompt=x", "application/x-www-form-urlencoded", 415),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_case_14_what_is_no_json(
    client: httpx.AsyncClient, path: str, content: bytes, kind: str | None, status: int
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    refusal(await client.post(path, content=content, headers=headers), status)


async def test_case_15_a_body_of_two_gigabytes_is_refused_unread(engine: LocalEngine) -> None:
    async with app_over(engine) as app, served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {2 * 2**30}\r\n\r\n".encode() + b'{"prompt": "')
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_case_18_a_prompt_longer_than_the_context_is_refused_and_the_queue_moves_on(
    client: httpx.AsyncClient, path: str
) -> None:
    text = "x" * (MAX_LEN + 1)
    body = user(text) if path == CHAT else {"prompt": text}
    await refused(client, path, body, "messages" if path == CHAT else "prompt")


async def test_case_18_a_prompt_of_the_whole_context_has_no_room_for_a_token(client: httpx.AsyncClient) -> None:
    refusal(await client.post(COMPLETIONS, json={"prompt": "x" * MAX_LEN}))
    whole = {"prompt": "x" * MAX_LEN, "max_tokens": 0, "echo": True, "logprobs": 0}
    assert len((await client.post(COMPLETIONS, json=whole)).json()["choices"][0]["logprobs"]["tokens"]) == MAX_LEN
    last = (await client.post(COMPLETIONS, json={"prompt": "x" * (MAX_LEN - 1)})).json()
    assert last["usage"]["completion_tokens"] == 1


async def test_the_end_of_a_stream_after_all_that(client: httpx.AsyncClient) -> None:
    chunks = events((await client.post(COMPLETIONS, json={**NEIGHBOUR, "stream": True})).text)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"

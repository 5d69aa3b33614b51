"""What only some clients ask for: token ids, the prompt's log-probabilities, usage as it grows, a shorter prompt, and
what goes to the chat template.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.server.fake_engine import CONTEXT, EOS, FakeEngine, say
from tests.server.serving import CHAT, COMPLETIONS, events, http, refusal, user

PROMPT = b"user:hi\nassistant:"


async def test_token_ids_of_prompt_and_answer_on_chat(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("é!")
    body = user("hi", return_token_ids=True, n=2)
    answer = (await client.post(CHAT, json=body)).json()
    assert answer["prompt_token_ids"] == [*PROMPT]
    assert [c["token_ids"] for c in answer["choices"]] == [[0xC3, 0xA9, ord("!"), EOS]] * 2
    chunks = events((await client.post(CHAT, json={**body, "stream": True})).text)
    assert [c.get("prompt_token_ids") for c in chunks] == [[*PROMPT]] + [None] * (len(chunks) - 1)
    for index in range(2):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert [t for c in own for t in c.get("token_ids", [])] == answer["choices"][0]["token_ids"]


async def test_token_ids_of_prompt_and_answer_on_completions(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("ok")
    body = {"prompt": ["a", "bc"], "return_token_ids": True}
    choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    assert [c["prompt_token_ids"] for c in choices] == [[97], [98, 99]]
    assert [c["token_ids"] for c in choices] == [[*b"ok", EOS]] * 2
    chunks = [c["choices"][0] for c in events((await client.post(COMPLETIONS, json={**body, "stream": True})).text)]
    for index, prompt in enumerate([[97], [98, 99]]):
        own = [c for c in chunks if c["index"] == index]
        assert [c.get("prompt_token_ids") for c in own] == [prompt] + [None] * (len(own) - 1)
        assert [t for c in own for t in c["token_ids"]] == [*b"ok", EOS]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_without_being_asked_nothing_of_it_is_there(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, json=user("hi") if path == CHAT else {"prompt": "hi"})
    for name in ("token_ids", "prompt_token_ids", "prompt_logprobs"):
        assert name not in answer.text


async def test_tokens_can_be_written_as_their_ids(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("a")
    body = user("hi", logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True)
    content = (await client.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in content] == ["token_id:97", f"token_id:{EOS}"]
    assert [t["token"] for t in content[0]["top_logprobs"]] == ["token_id:97", "token_id:98"]
    assert content[0]["bytes"] == [97]
    text = {"prompt": "x", "logprobs": 1, "return_tokens_as_token_ids": True}
    logprobs = (await client.post(COMPLETIONS, json=text)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:97", f"token_id:{EOS}"]
    assert logprobs["top_logprobs"][0] == {"token_id:97": -0.5}
    assert logprobs["text_offset"] == [0, 1]


async def test_logprobs_of_the_prompt(client: httpx.AsyncClient) -> None:
    expected = [
        None,
        {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}},
        {"99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"}},
    ]
    choice = (await client.post(COMPLETIONS, json={"prompt": "abc", "prompt_logprobs": 1})).json()["choices"][0]
    assert choice["prompt_logprobs"] == expected
    assert choice["logprobs"] is None
    none = (await client.post(COMPLETIONS, json={"prompt": "abc", "prompt_logprobs": 0})).json()["choices"][0]
    assert none["prompt_logprobs"] == expected
    answer = (await client.post(CHAT, json=user("hi", prompt_logprobs=2))).json()
    assert [p and [v["rank"] for v in p.values()] for p in answer["prompt_logprobs"]] == [None] + [[1, 2]] * (
        len(PROMPT) - 1
    )


async def test_an_echo_and_the_prompts_logprobs_each_have_their_own_width(client: httpx.AsyncClient) -> None:
    body = {"prompt": "ab", "prompt_logprobs": 1, "echo": True, "logprobs": 3, "max_tokens": 0}
    choice = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]
    assert len(choice["prompt_logprobs"][1]) == 1
    assert len(choice["logprobs"]["top_logprobs"][1]) == 3


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 21},
        {"prompt_logprobs": 1, "stream": True},
        {"prompt_logprobs": True},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"truncate_prompt_tokens": "5"},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [10**30]},
        {"allowed_token_ids": {"5": 1}},
        {"bad_words": [""]},
        {"bad_words": "word"},
        {"bad_words": [["a"]]},
        {"return_token_ids": "yes"},
        {"return_tokens_as_token_ids": 1},
    ],
)
async def test_bad_values_are_refused_by_name(client: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> None:
    body = user("hi") if path == CHAT else {"prompt": "hi"}
    assert refusal(await client.post(path, json={**body, **fields}))["param"] == next(iter(fields))


async def test_usage_as_it_grows(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = say("abc")
    for path, body in ((CHAT, user("hi")), (COMPLETIONS, {"prompt": "hi"})):
        streamed = {**body, "stream": True, "stream_options": {"continuous_usage_stats": True}}
        chunks = events((await client.post(path, json=streamed)).text)
        generated = [c["usage"]["completion_tokens"] for c in chunks]
        assert generated == sorted(generated)
        assert generated[-1] == 4
        assert chunks[-1]["choices"] == []
        usages = [c["usage"] for c in chunks]
        assert all(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in usages)


@pytest.mark.parametrize(("keep", "kept"), [(3, b"nt:"), (1000, PROMPT), (-1, PROMPT)])
async def test_a_prompt_is_cut_from_the_left(
    client: httpx.AsyncClient, engine: FakeEngine, keep: int, kept: bytes
) -> None:
    answer = (await client.post(CHAT, json=user("hi", truncate_prompt_tokens=keep))).json()
    assert bytes(engine.added[0].prompt_ids) == kept
    assert answer["usage"]["prompt_tokens"] == len(kept)


async def test_a_prompt_too_long_is_cut_to_what_fits(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {"prompt": "x" * (2 * CONTEXT), "truncate_prompt_tokens": -1, "max_tokens": 50, "echo": True}
    assert (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["text"].startswith("x" * (CONTEXT - 50))
    assert len(engine.added[0].prompt_ids) == CONTEXT - 50
    assert (await client.post(CHAT, json=user("x" * 300, truncate_prompt_tokens=-1))).status_code == 200
    assert len(engine.added[1].prompt_ids) == CONTEXT - 1


async def test_bad_words_and_allowed_tokens_reach_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields: dict[str, Any] = {"bad_words": ["no"], "allowed_token_ids": [7, 8]}
    for path, body in ((CHAT, user("hi")), (COMPLETIONS, {"prompt": "hi"})):
        assert (await client.post(path, json={**body, **fields})).status_code == 200
        params = engine.added[-1].params
        assert params.bad_words_token_ids == ((*b"no",), (*b" no",))
        assert params.allowed_token_ids == (7, 8)


async def test_documents_reach_a_template_that_takes_them(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = user("hi", documents=[{"text": "fact"}])
    assert (await client.post(CHAT, json=body)).status_code == 200
    assert bytes(engine.added[0].prompt_ids) == b"<fact>" + PROMPT
    template = "tests.server.fake_engine.PlainTemplate"
    monkeypatch.setattr(f"{template}.variables", frozenset({"messages"}))
    assert refusal(await client.post(CHAT, json=body))["param"] == "documents"
    assert (await client.post(CHAT, json=user("hi", documents=[]))).status_code == 200


async def test_template_arguments_are_the_operators_to_allow(
    make_app: Callable[..., Starlette], engine: FakeEngine
) -> None:
    async with http(make_app()) as client:
        error = refusal(await client.post(CHAT, json=user("hi", chat_template_kwargs={"mood": "sad"})))
        assert error["param"] == "chat_template_kwargs"
        assert "--allowed-chat-template-kwargs" in error["message"]
    async with http(make_app(template_kwargs=("mood", "messages", "absent"))) as client:
        for given in ({"mood": "sad"}, {}):
            assert (await client.post(CHAT, json=user("hi", chat_template_kwargs=given))).status_code == 200
        for name in ("messages", "absent", "other", "x" * 1000):
            error = refusal(await client.post(CHAT, json=user("hi", chat_template_kwargs={name: "x"})))
            assert error["param"] == "chat_template_kwargs"
            assert len(error["message"]) < 300
    assert [bytes(r.prompt_ids) for r in engine.added] == [b"sad" + PROMPT, PROMPT]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_beginning_leads_the_answer(client: httpx.AsyncClient, stream: bool) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "I say: "}]
    body = {"messages": messages, "continue_final_message": True, "echo": True, "stream": stream}
    response = await client.post(CHAT, json=body)
    if stream:
        chunks = [c["choices"][0]["delta"] for c in events(response.text)]
        text = "".join(c.get("content", "") for c in chunks)
    else:
        text = response.json()["choices"][0]["message"]["content"]
    assert text == "I say: Hello, world!"

"""Every field is honoured, accepted without effect, or refused by name: the same on both generating routes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.server.fake_engine import VOCAB, FakeEngine
from tests.server.serving import CHAT, COMPLETIONS, MODEL, refusal

from headrace.core.errors import RequestError
from headrace.server.fields import NEUTRAL_ONLY, NO_EFFECT, REFUSED, parse
from headrace.server.protocol import ChatBody, CompletionBody, StreamOptions

BODIES = [
    pytest.param(CHAT, {"messages": [{"role": "user", "content": "hi"}]}, id="chat"),
    pytest.param(COMPLETIONS, {"prompt": "hi"}, id="completions"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("n", "2"),
        ("n", 1.5),
        ("n", True),
        ("temperature", 5),
        ("temperature", -0.1),
        ("temperature", 1e6),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("min_p", -1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("seed", 2**63),
        ("seed", "x"),
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("min_tokens", -1),
        ("min_tokens", 10**9),
        ("stop", ""),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", ["a"] * 65),
        ("stop", ["a" * 3000, "", "b" * 3000]),
        ("stop", ["a", "b" * 4097]),
        ("stop", {"a": 1}),
        ("stop_token_ids", [VOCAB]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", 5),
        ("logit_bias", {str(VOCAB): 5}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"a": 5}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "a"}),
        ("logit_bias", []),
        ("logit_bias", {"9" * 5000: 1}),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("stream_options", []),
        ("stream_options", {"unknown": 1}),
        ("cache_salt", ""),
        ("cache_salt", 5),
        ("cache_hint", {"pin": -1}),
        ("cache_hint", {"pni": 1}),
        ("cache_hint", 5),
        ("num_speculative_tokens", -1),
        ("num_speculative_tokens", "2"),
        ("priority", "urgent"),
        ("priority", 2**31),
        ("priority", 1.5),
        ("service_tier", "gold"),
        ("service_tier", 1),
        ("token_ids_logprob", [-1]),
        ("guided_json", {"json": ""}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("structured_outputs", []),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("functions", [{}]),
        ("store", True),
        ("store", 0),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
        ("best_of", 2),
        ("suffix", "x"),
        ("chat_template", "{{ messages }}"),
        ("chat_template_kwargs", {"a": 1}),
        ("temprature", 0.5),
        ("extra_body", {}),
    ],
)
async def test_bad_fields_are_refused_by_name_with_streams_untouched(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any], field: str, value: Any
) -> None:
    for stream in (False, True):
        error = refusal(await client.post(path, json={"stream": stream, **body, field: value}))
        assert error["type"] == "invalid_request_error"
        assert error["param"] == field
        assert field in error["message"]
        assert len(error["message"]) < 1000
        if field == "stream_options":
            break
    assert engine.added == []
    assert (await client.post(path, json=body)).status_code == 200
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_fields_without_effect_are_accepted(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    more: dict[str, Any] = {name: {"any": ["thing"]} for name in NO_EFFECT}
    more |= {name: values[0] for name, values in NEUTRAL_ONLY.items()}
    assert (await client.post(path, json={**body, **more})).status_code == 200


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_null_means_absent_everywhere(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    kind = ChatBody if path == CHAT else CompletionBody
    names = [*kind.__struct_fields__, *NO_EFFECT, *NEUTRAL_ONLY, *REFUSED, "unheard_of"]
    response = await client.post(path, json={**dict.fromkeys(names), **body})
    assert response.status_code == 200, response.text


async def test_unknown_fields_say_what_is_near(client: httpx.AsyncClient) -> None:
    error = refusal(await client.post(COMPLETIONS, json={"prompt": "x", "max_token": 5}))
    assert "max_tokens" in error["message"]
    assert error["code"] == "unknown_parameter"


@pytest.mark.parametrize("body", [{"top_logprobs": 21, "logprobs": True}, {"top_logprobs": 2}, {"logprobs": 2}])
async def test_chat_logprobs_are_checked(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    error = refusal(await client.post(CHAT, json={"messages": [{"role": "user", "content": "x"}], **body}))
    assert error["param"] in body


@pytest.mark.parametrize("logprobs", [-1, 21, True, "1"])
async def test_completion_logprobs_are_checked(client: httpx.AsyncClient, logprobs: Any) -> None:
    assert refusal(await client.post(COMPLETIONS, json={"prompt": "x", "logprobs": logprobs}))["param"] == "logprobs"


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    error = refusal(await client.post(COMPLETIONS, json={"model": "gpt-4", "prompt": "x"}), 404)
    assert error["code"] == "model_not_found"
    assert MODEL in error["message"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(fields={"stream_options": {}})
@given(fields=st.dictionaries(st.sampled_from([*ChatBody.__struct_fields__, "x"]) | st.text(max_size=4), json_values))
def test_any_object_is_parsed_or_refused(fields: dict[str, Any]) -> None:
    try:
        body = parse(fields, ChatBody)
    except RequestError as error:
        assert error.message
    else:
        honoured = {name: value for name, value in fields.items() if name in ChatBody.__struct_fields__}
        options = honoured.pop("stream_options", None)
        assert options is None or isinstance(body.stream_options, StreamOptions)
        assert {name: getattr(body, name) for name in honoured} == honoured

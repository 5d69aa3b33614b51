"""Whatever JSON, or nearly JSON, a client sends: an answer in the API's shape, none of them a fault of ours, and
nothing left behind in the engine.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.inputs import json_values, nearly
from tests.server.local_engine import LocalEngine, app_over, null_executor
from tests.server.serving import CHAT, COMPLETIONS, events, eventually, http, user

from headrace.server.fields import NEUTRAL_ONLY, NO_EFFECT, REFUSED
from headrace.server.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

BODIES: dict[str, dict[str, Any]] = {
    CHAT: user("hi", max_tokens=3, temperature=0.5, logprobs=True, top_logprobs=2, stop=["x"], logit_bias={"5": 1}),
    COMPLETIONS: {"prompt": ["a", "b"], "max_tokens": 3, "echo": True, "logprobs": 1, "n": 2, "seed": 1},
    "/tokenize": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    "/detokenize": {"tokens": [1, 2, 3]},
}
FIELDS = sorted(
    {*NO_EFFECT, *NEUTRAL_ONLY, *REFUSED}.union(
        *(b.__struct_encode_fields__ for b in (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody))
    )
)
changed = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), json_values, min_size=1, max_size=3)


@settings(suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(sorted(BODIES)), changes=st.lists(changed, min_size=1, max_size=4))
def test_bodies_with_fields_of_any_value(path: str, changes: list[dict[str, Any]]) -> None:
    asyncio.run(send(path, [msgspec.json.encode({**BODIES[path], **change}) for change in changes]))


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data(), path=st.sampled_from(sorted(BODIES)))
def test_bodies_that_are_nearly_json(data: st.DataObject, path: str) -> None:
    good = msgspec.json.encode(BODIES[path])
    asyncio.run(send(path, data.draw(st.lists(nearly(good), min_size=1, max_size=4))))


async def send(path: str, bodies: list[bytes]) -> None:
    engine = LocalEngine(null_executor(max_len=64))
    async with app_over(engine) as app, http(app) as client:
        headers = {"content-type": "application/json"}
        answers = await asyncio.gather(*(client.post(path, content=body, headers=headers) for body in bodies))
        for answer in answers:
            check(answer)
        await eventually(lambda: engine.idle)
        assert app.state.service.live == 0


def check(answer: httpx.Response) -> None:
    if answer.status_code == 200:
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert all("error" not in event for event in events(answer.text))
        else:
            assert isinstance(answer.json(), dict)
        return
    # A deadline of a millisecond may pass.
    assert 400 <= answer.status_code < 500 or answer.status_code == 504, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) < 3000

"""What an answer's usage says of tokens that were guessed ahead, in every shape of answer, and who asks for none."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.fake_engine import VOCAB
from tests.server.local_engine import LocalEngine, app_over
from tests.server.serving import CHAT, COMPLETIONS, MODEL, events, http, user

from headrace.core.request import Request, SamplingParams
from headrace.engine.null_executor import expected_tokens
from headrace.policy.speculation import Proposal

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("free_rows")]
RESPONSES = "/v1/responses"


class TwoRight:
    """Guesses three tokens, of which the first two come true."""

    costly, copy = False, None

    def propose(self, contexts):
        return [self._guess(context) for context in contexts]

    def remember(self, namespace, tokens, prompt_len):
        pass

    def _guess(self, context):
        right = Request("r", context.tokens.tolist(), SamplingParams(), min(3, context.most), seed=context.seed)
        tokens = expected_tokens(right, VOCAB)
        return Proposal([*tokens[:2], *((t + 1) % VOCAB for t in tokens[2:])], [0.9] * len(tokens))


def told(usage):
    details = usage["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def counted(engine):
    return engine.engine.drafting.accepted, engine.engine.drafting.proposed - engine.engine.drafting.accepted


BODY = {"max_tokens": 20, "seed": 5, "ignore_eos": True}
ASKED = [(CHAT, user("Hello", **BODY)), (COMPLETIONS, {"model": MODEL, "prompt": "Hello", **BODY})]


@pytest.mark.parametrize(("path", "body"), ASKED, ids=["chat", "completions"])
async def test_usage_says_what_was_guessed_and_what_came_true(path, body):
    engine = LocalEngine(drafter=TwoRight())
    async with app_over(engine) as app, http(app) as client:
        whole = (await client.post(path, json=body)).json()["usage"]
        assert told(whole) == counted(engine)
        assert told(whole)[0] >= 8 > 3 < told(whole)[1]
        assert sum(told(whole)) <= whole["completion_tokens"] * 1.5
        options = {"include_usage": True, "continuous_usage_stats": True}
        stream = await client.post(path, json={**body, "stream": True, "stream_options": options})
        pieces = [event["usage"] for event in events(stream.text)]
        assert tuple(map(sum, zip(told(whole), told(pieces[-1]), strict=True))) == counted(engine)
        so_far = [told(usage)[0] for usage in pieces if "completion_tokens_details" in usage]
        assert so_far == sorted(so_far)
        assert len(set(so_far)) > 3


async def test_a_response_says_it_too():
    engine = LocalEngine(drafter=TwoRight())
    async with app_over(engine) as app, http(app) as client:
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 20}
        details = (await client.post(RESPONSES, json=body)).json()["usage"]["output_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == counted(engine)
    assert engine.engine.drafting.accepted > 0


async def test_choices_are_counted_together():
    engine = LocalEngine(drafter=TwoRight())
    async with app_over(engine) as app, http(app) as client:
        usage = (await client.post(CHAT, json=user("Hello", n=3, **BODY))).json()["usage"]
    assert told(usage) == counted(engine)


async def test_what_came_true_past_a_stop_string_is_not_counted():
    engine = LocalEngine(drafter=TwoRight())
    async with app_over(engine) as app, http(app) as client:
        text = (await client.post(CHAT, json=user("Hello", **BODY))).json()["choices"][0]["message"]["content"]
        before, said = engine.engine.drafting.accepted, 0
        for stop in sorted(set(text)):
            usage = (await client.post(CHAT, json=user("Hello", **BODY, stop=stop))).json()["usage"]
            assert sum(told(usage)) > 0
            assert told(usage)[0] <= usage["completion_tokens"]
            said += told(usage)[0]
    assert said < engine.engine.drafting.accepted - before


@pytest.mark.parametrize(("path", "body"), ASKED, ids=["chat", "completions"])
async def test_a_request_that_wants_no_guesses_gets_none_and_its_usage_says_nothing(path, body):
    engine = LocalEngine(drafter=TwoRight())
    async with app_over(engine) as app, http(app) as client:
        usage = (await client.post(path, json={**body, "num_speculative_tokens": 0})).json()["usage"]
        assert "completion_tokens_details" not in usage
        assert engine.engine.drafting.proposed == 0
        await client.post(path, json={**body, "num_speculative_tokens": 1})
        assert engine.engine.drafting.proposed == engine.engine.drafting.accepted > 0
        for number in (-1, 2**63):
            wrong = (await client.post(path, json={**body, "num_speculative_tokens": number})).json()["error"]
            assert wrong["param"] == "num_speculative_tokens"
            assert wrong["message"].endswith(f"must be from 0 to {2**63 - 1}, got {number}")


async def test_metrics_say_what_guessing_brings():
    engine = LocalEngine(drafter=TwoRight())
    async with app_over(engine) as app, http(app) as client:
        await client.post(CHAT, json=user("Hello", **BODY))
        text = (await client.get("/metrics")).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name.removeprefix("headrace:spec_decode_"), sample.labels.get("position")] = sample.value
    did = engine.engine.drafting
    assert found["num_drafts_total", None] == did.drafts > 0
    assert found["num_draft_tokens_total", None] == did.proposed
    assert found["num_accepted_tokens_total", None] == did.accepted
    assert found["saved_seconds", None] == did.saved_seconds > 0
    by_position = [found["num_accepted_tokens_per_pos_total", str(i)] for i in range(len(did.by_position))]
    assert by_position == did.by_position
    assert sum(by_position) == did.accepted
    assert len(by_position) == 2

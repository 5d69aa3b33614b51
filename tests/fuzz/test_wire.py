"""Messages between the processes that are nearly right: the engine's loop refuses what it cannot read, and what it can
read is refused or run; the engine goes on with both.
"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.engine_driver import capacity, make_engine, request
from tests.fuzz.inputs import nearly

from headrace.core.errors import RequestError
from headrace.core.request import OutputDelta, TokenLogprobs
from headrace.engine.wire import Abort, Add, Hello, Outputs, Stats, decode_from_engine, decode_to_engine, encode

ASKED = request(
    "r", [1, 2, 3], 4, eos_ids=(7,), logit_bias={3: 1.0}, stop_token_ids=[5], logprobs=2, bad_words_token_ids=[[4, 5]]
)
TO_ENGINE = [encode(m) for m in (Add(ASKED), Abort(["r", "s"]), Hello())]
FROM_ENGINE = [
    encode(Outputs([OutputDelta("r", [1, 2], [TokenLogprobs(1, -0.5, 1, [(1, -0.5)])] * 2, cached_tokens=3)])),
    encode(Stats(finished={"stop": 3})),
]


@given(data=st.data())
def test_what_is_sent_to_the_engine(data: st.DataObject) -> None:
    engine = make_engine(capacity())
    for _ in range(3):
        try:
            message = decode_to_engine(data.draw(nearly(data.draw(st.sampled_from(TO_ENGINE)))))
        except (msgspec.MsgspecError, RequestError, RecursionError):
            continue
        match message:
            case Add(asked):
                try:
                    engine.add(asked, 0.0)
                except RequestError as error:
                    assert error.message
            case Abort(request_ids):
                engine.abort(request_ids, 0.0)
    steps = 0
    while engine.has_work:
        engine.step(lambda: 0.0)
        steps += 1
        assert steps < 1000
    assert engine.stats().blocks_used == 0


@given(data=st.data())
def test_what_comes_from_the_engine(data: st.DataObject) -> None:
    try:
        message = decode_from_engine(data.draw(nearly(data.draw(st.sampled_from(FROM_ENGINE)))))
    except msgspec.MsgspecError:
        return
    assert decode_from_engine(encode(message)) == message or "nan" in repr(message)

"""A step that raises ends the request at fault and changes nothing for the others."""

import pytest
from tests.engine.engine_driver import capacity, expected, make_engine, request, run

from headrace.core.errors import EngineError
from headrace.core.request import FinishReason
from headrace.engine.null_executor import Faults

VOCAB = 100_000
CRASH = VOCAB - 1


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_only_the_request_at_fault_ends(depth, windows):
    has = capacity(slots=6, windows=windows, vocab_size=VOCAB)
    good = [request(f"g{i}", [1 + i, 2, 3] * (i + 1), 12, seed=i, logprobs=i % 2) for i in range(5)]
    assert all(CRASH not in expected(one, has) for one in good)
    bad = request("bad", [4, 5, 6, 7, CRASH, 8], 12)
    engine = make_engine(has, faults=Faults(crash_token=CRASH), pipeline_depth=depth, max_num_batched_tokens=9)
    sent = run(engine, [*good[:3], bad, *good[3:]])
    assert sent["bad"].reason is FinishReason.ERROR and sent["bad"].tokens == []
    assert "failed" in sent["bad"].last.error
    for one in good:
        assert sent[one.request_id].tokens == expected(one, has)
        assert len(sent[one.request_id].logprobs) == (12 if one.params.logprobs is not None else 0)
    assert engine.stats().blocks_used == 0


def test_a_fault_in_the_middle_of_decoding():
    has = capacity(vocab_size=VOCAB)
    one = request("r", [1, 2, 3], 20)
    crash = expected(one, has)[10]
    first = expected(one, has).index(crash)
    other = request("other", [7, 7], 20)
    sent = run(make_engine(has, faults=Faults(crash_token=crash)), [one, other])
    assert sent["r"].tokens == expected(one, has)[: first + 1]
    assert sent["r"].reason is FinishReason.ERROR
    end = expected(other, has)
    assert sent["other"].tokens == (end[: end.index(crash) + 1] if crash in end[:-1] else end)


def test_if_every_request_fails_the_device_is_at_fault():
    engine = make_engine(capacity(vocab_size=VOCAB), faults=Faults(crash_token=CRASH))
    for i in range(3):
        engine.add(request(f"r{i}", [CRASH, i]), 0.0)
    with pytest.raises(EngineError, match="each of its 3 requests"):
        engine.step(lambda: 0.0)

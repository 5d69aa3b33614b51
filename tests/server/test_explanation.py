"""Each thing that can become of a request has its sentence."""

from __future__ import annotations

import pytest
from tests.server.fake_engine import ByteTokenizer

from headrace.policy.cache_report import CacheReport, Miss
from headrace.policy.records import PreemptionRecord, RequestRecord
from headrace.server.explanation import explain


def told(state: str, **fields: object) -> list[str]:
    record = RequestRecord("r", state, "", 0, None, 12, 5, **fields)  # type: ignore[arg-type]
    return explain(record, ByteTokenizer())


def test_one_that_waits() -> None:
    assert told(
        "waiting", position=3, predicted_wait_s=2.5, waited_s=0.25, waited_for={"slots": 0.2, "step": 0.05}
    ) == [
        "It is waiting, number 3 of those that wait, and will wait about 2.5 s more: 12 prompt tokens.",
        "It waited 250 ms in all: 200 ms for a slot, since as many requests ran as may (--max-num-seqs), 50 ms for the "
        "step under way to end.",
    ]


def test_one_that_ended_and_had_given_way() -> None:
    preemptions = [PreemptionRecord(1.0, resumed_after_s=3.0), PreemptionRecord(5.0, "swap", "vip-0")]
    sentences = told(
        "finished", ended_after_s=9.0, finish_reason="length", generated_tokens=5, num_preemptions=4,
        preemptions=preemptions,
    )  # fmt: skip
    assert sentences == [
        "It ended with length 9.0 s after its arrival: 12 prompt tokens, 5 generated.",
        "It waited 0 ms in all.",
        "It had given up its place 2 times before.",
        "It gave up its place 1.0 s after its arrival, because blocks ran out, and resumed at 3.0 s.",
        "It gave up its place 5.0 s after its arrival, for vip-0, which goes before it, with what it had "
        "computed moved aside, and has not resumed.",
    ]


@pytest.mark.parametrize(
    ("cache", "sentence"),
    [
        (CacheReport(8, miss=Miss.NOTHING), "8 on the device. No more could come from there: the last token is"),
        (CacheReport(at=3, miss=Miss.NEW), "none. Nobody had gone on from index 3 before."),
        (
            CacheReport(4, 2, 1, at=7, miss=Miss.DIVERGED, token=65, others=(66, 67)),
            "4 on the device and 2 in host memory and 1 on disk. At index 7 it has token 65 ('A'), where those before "
            "it had token 66 ('B') or token 67 ('C').",
        ),
        (
            CacheReport(at=4, miss=Miss.EVICTED, evicted_at=1.0, evicted_for="other-0"),
            "none. What comes from index 4 on was there, but its block was taken 2.5 s ago for other-0.",
        ),
        (CacheReport(at=0, miss=Miss.NAMESPACE), "none. What comes from index 0 on is known under another cache_salt"),
        (CacheReport(at=1, miss=Miss.SCORED), "none. From index 1 on its prompt is computed for its log-prob"),
        (CacheReport(miss=Miss.OFF), "none. There is no prefix cache"),
    ],
)
def test_why_the_cache_had_no_more(cache: CacheReport, sentence: str) -> None:
    told_of_it = told("running", cache=cache, prefix_of="first-0", evicted_ago_s=2.5)
    assert f"Of its prompt's 12 tokens the cache had {sentence}" in told_of_it[2]
    assert told_of_it[3] == "It waited until first-0 had computed what both begin with."

import pytest

from headrace.core.errors import OverloadedError, RequestError
from headrace.core.request import Request, SamplingParams
from headrace.policy.admission import Admission
from headrace.policy.block_manager import BlockManager


def check(prompt_len, max_tokens, *, num_blocks=8, waiting=0, free_slots=0, admission=None):
    blocks = BlockManager(
        num_slots=2,
        max_model_len=40,
        block_size=4,
        num_blocks=(num_blocks,),
        windows=(None,),
        reach=8,
        caching=True,
    )
    admission = admission or Admission(max_model_len=40, vocab_size=10, max_queued_requests=3)
    made = Request("r", [1] * prompt_len, SamplingParams(max_tokens=max_tokens), max_tokens, 0)
    admission.check(made, blocks, waiting=waiting, free_slots=free_slots)


def test_the_limits_are_exact():
    check(33, 0)
    check(20, 13)
    check(1, 39, num_blocks=10)


@pytest.mark.parametrize(
    "prompt_len, max_tokens, num_blocks, field, words",
    [
        (0, 4, 8, "prompt", "at least one token"),
        (41, 0, 99, "prompt", "has 41 tokens.*at most 40"),
        (30, 11, 99, "max_tokens", "set max_tokens to at most 10"),
        (20, 14, 8, "max_tokens", "at most 33 tokens of one request"),
        (35, 1, 8, "prompt", "kv-cache-memory-bytes"),
    ],
)
def test_what_can_never_fit_is_refused_by_name(prompt_len, max_tokens, num_blocks, field, words):
    with pytest.raises(RequestError, match=words) as refusal:
        check(prompt_len, max_tokens, num_blocks=num_blocks)
    assert refusal.value.param == field
    assert refusal.value.status == 400


def test_the_queue_is_bounded_beyond_what_the_next_step_takes():
    check(1, 4, waiting=2)
    check(1, 4, waiting=4, free_slots=2)
    for waiting, free_slots in ((3, 0), (5, 2)):
        with pytest.raises(OverloadedError, match=f"{waiting} requests are waiting and at most 3 may"):
            check(1, 4, waiting=waiting, free_slots=free_slots)


def test_the_expected_wait_follows_how_often_requests_end():
    admission = Admission(max_model_len=40, vocab_size=10, max_queued_requests=3)
    assert admission.expected_wait(3) == 1
    for now in range(0, 40, 4):
        admission.finished(float(now))
    assert admission.expected_wait(3) == pytest.approx(4)
    assert admission.expected_wait(5) == pytest.approx(12)
    assert admission.expected_wait(5000) == 60

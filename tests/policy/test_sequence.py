import pytest

from headrace.core.request import MOVES, Request, RequestState, SamplingParams
from headrace.policy.sequence import Sequence


def sequence(prompt, output=(), **params):
    made = Request("r", list(prompt), SamplingParams(**params), max_tokens=8, seed=0, output_ids=list(output))
    return Sequence.of(made, 0)


@pytest.mark.parametrize("start", RequestState)
@pytest.mark.parametrize("end", RequestState)
def test_only_legal_moves(start, end):
    one = sequence([1])
    one.state = start
    if end in MOVES[start]:
        one.move(end)
        assert one.state is end
    else:
        with pytest.raises(ValueError, match=f"illegal move from {start.value} to {end.value}"):
            one.move(end)


def test_all_but_the_last_known_token_may_be_cached():
    assert sequence(range(9)).cacheable == 8
    assert sequence(range(9), [1, 2]).cacheable == 10


def test_prompt_logprobs_read_the_cache_only_before_what_they_need():
    one = sequence(range(9), prompt_logprobs=0)
    assert one.scoring and one.cacheable == 0
    one.scored = 5
    assert one.cacheable == 5
    one.scored = 8
    assert not one.scoring and one.cacheable == 8

"""Sampling by every provider: what each parameter means, that the tokens follow the distribution, and that a token
depends on nothing but its own row."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.batch import BatchOutput, TokenMasks
from headrace.core.request import SamplingParams
from headrace.ops.sampling import MIN_LOGPROB, ReferenceSampler, Sampler, SamplingTable
from headrace.ops.token_masks import mask_of

_kernels = pytest.importorskip("headrace._kernels", reason="the kernels are not built: make kernels")
cpu_sampling = pytest.importorskip("headrace.ops.cpu_sampling")

Provider = Callable[[SamplingTable], Sampler]
POOL = _kernels.ThreadPool(2)


def cpu(isa: str) -> Provider:
    return lambda table: cpu_sampling.CpuSampler(table, kernels=_kernels.Kernels(isa), pool=POOL)


KERNELS: dict[str, Provider] = {isa: cpu(isa) for isa in _kernels.available_isas()}
PROVIDERS: dict[str, Provider] = {"reference": ReferenceSampler, **KERNELS}


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> Provider:
    return PROVIDERS[request.param]


def int32(values: object) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def run_one(
    provider: Provider,
    logits: npt.ArrayLike,
    params: SamplingParams,
    *,
    history: tuple[int, ...] = (0,),
    prompt_len: int = 1,
    eos_ids: tuple[int, ...] = (),
    seed: int = 0,
    sample: bool = True,
    top: int = -1,
    position: int | None = None,
    masks: TokenMasks | None = None,
) -> BatchOutput:
    row = np.array([logits], np.float32)
    table = SamplingTable(2, row.shape[1])
    table.set(1, params, seed=seed, choice=0, prompt_len=prompt_len, eos_ids=eos_ids)
    known = np.zeros((2, 16), np.int32)
    known[1, : len(history)] = history
    at = len(history) if position is None else position
    return provider(table).run(3, row, int32([1]), int32([at]), np.array([sample]), int32([top]), known, masks)


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(temperature=0, **fields)  # type: ignore[arg-type]


def test_greedy_takes_the_lowest_of_the_likeliest(provider: Provider) -> None:
    output = run_one(provider, [1, 5, 3, 5], greedy())
    assert output.step == 3
    assert output.tokens.tolist() == [1] and output.tokens.dtype == np.int32
    assert output.failed.tolist() == [False]
    assert output.logprob is None and output.top_ids is None


@pytest.mark.parametrize("bad", [[1, np.nan, 0], [np.inf, 0, 0], [-np.inf] * 3, [np.nan, np.inf, 0]])
def test_logits_that_are_not_finite_fail_the_row(provider: Provider, bad: list[float]) -> None:
    output = run_one(provider, bad, SamplingParams(), top=2)
    assert output.failed.tolist() == [True] and output.tokens.tolist() == [0]
    assert output.rank is not None and output.rank.tolist() == [0]


def test_minus_infinity_is_a_token_that_cannot_come(provider: Provider) -> None:
    for seed in range(20):
        output = run_one(provider, [0, -np.inf, 0], SamplingParams(), seed=seed, top=3)
        assert not output.failed[0] and output.tokens[0] != 1
        assert output.top_ids is not None and output.top_logprobs is not None
        assert output.top_ids.tolist() == [[0, 2, 1]]
        np.testing.assert_allclose(output.top_logprobs[0], [np.log(0.5), np.log(0.5), MIN_LOGPROB], rtol=1e-6)


def test_bias_is_added_before_the_choice_and_not_in_the_logprobs(
    provider: Provider,
) -> None:
    output = run_one(provider, [0, 1, 0], greedy(logit_bias={2: 5.0, 1: -1.0}), top=0)
    assert output.tokens.tolist() == [2]
    assert output.logprob is not None and output.rank is not None
    np.testing.assert_allclose(output.logprob, [-np.log(2 + np.e)], rtol=1e-6)
    assert output.rank.tolist() == [3]  # ties count by lower id


def test_end_tokens_are_banned_until_min_tokens_exist(provider: Provider) -> None:
    params = greedy(min_tokens=2, stop_token_ids=[2])
    for history, token in (((0, 0), 0), ((0, 0, 1), 0), ((0, 0, 1, 1), 1)):
        output = run_one(provider, [1, 9, 8], params, history=history, prompt_len=2, eos_ids=(1,))
        assert output.tokens.tolist() == [token]


def test_if_everything_is_banned_the_likeliest_is_taken(provider: Provider) -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, min_tokens=2, stop_token_ids=[0, 2])
        output = run_one(provider, [0, 7, 3], params, eos_ids=(1,))
        assert output.tokens.tolist() == [1] and not output.failed[0]


def only(*tokens: int, vocab: int = 4) -> TokenMasks:
    """The mask of one row that lets these tokens through."""
    return TokenMasks(int32([0]), mask_of(tokens, vocab)[None])


def test_only_allowed_tokens_come_and_logprobs_stay_the_models_own(provider: Provider) -> None:
    for temperature in (0.0, 2.0):
        for seed in range(10):
            params = SamplingParams(temperature=temperature, allowed_token_ids=[0, 3])
            output = run_one(provider, [1, 9, 8, 2], params, seed=seed, top=4)
            assert output.tokens[0] in (0, 3)
            assert output.top_ids is not None and output.top_ids.tolist() == [[1, 2, 3, 0]]


def test_a_mask_of_the_batch_and_one_of_the_request_both_hold(provider: Provider) -> None:
    assert run_one(provider, [1, 9, 8, 2], greedy(), masks=only(0, 3)).tokens.tolist() == [3]
    allowed = greedy(allowed_token_ids=[0, 1])
    assert run_one(provider, [1, 9, 8, 2], allowed, masks=only(0, 3)).tokens.tolist() == [0]
    assert run_one(provider, [1, 9, 8, 2], allowed, masks=TokenMasks(int32([-1]), only(3).bits)).tokens.tolist() == [1]


def test_no_ban_and_no_bias_lets_a_masked_token_come(provider: Provider) -> None:
    params = SamplingParams(temperature=1, min_tokens=3, logit_bias={1: 100.0}, allowed_token_ids=[2, 3])
    output = run_one(provider, [9, 9, 5, 5], params, eos_ids=(2, 3))
    assert output.tokens.tolist() == [2]


@pytest.mark.parametrize(
    ("outputs", "token"),
    [((), 0), ((0,), 1), ((2, 0), 1), ((0, 2), 0), ((3, 0), 1), ((1, 3, 0), 2), ((3, 1, 3, 0), 2), ((0, 0), 1)],
)
def test_the_token_that_completes_a_bad_word_is_barred(
    provider: Provider, outputs: tuple[int, ...], token: int
) -> None:
    # Barred: 5 always; 0 after 0; 0 and 1 after 1 3 0. The prompt (0 0) does not count.
    params = greedy(bad_words_token_ids=[(5,), (0, 0), (1, 3, 0, 1)])
    history = (0, 0, *outputs)
    assert run_one(provider, [8, 7, 6, 0, 0, 9], params, history=history, prompt_len=2).tokens.tolist() == [token]


def test_repetition_penalty_counts_prompt_and_output_once(provider: Provider) -> None:
    params = greedy(repetition_penalty=2.0)
    logits = [4.0, 3.9, 1.9, 1.0]
    assert run_one(provider, logits, params, history=(0, 1, 1), prompt_len=1).tokens.tolist() == [0]
    assert run_one(provider, [4.0, 3.9, 2.1, 1.0], params, history=(0, 1, 1), prompt_len=1).tokens.tolist() == [2]
    assert run_one(provider, [-1.0, -1.5, -3.0], params, history=(0,)).tokens.tolist() == [1]


def test_frequency_and_presence_count_outputs_up_to_the_row(provider: Provider) -> None:
    logits, history = [2.0, 1.6, 0.0], (0, 0, 0, 0, 0, 0)
    frequency = greedy(frequency_penalty=0.25)
    for position, token in ((2, 0), (3, 0), (4, 1)):
        output = run_one(provider, logits, frequency, history=history, prompt_len=2, position=position)
        assert output.tokens.tolist() == [token]
    presence = greedy(presence_penalty=0.5)
    for position, token in ((2, 0), (3, 1), (6, 1)):
        output = run_one(provider, logits, presence, history=history, prompt_len=2, position=position)
        assert output.tokens.tolist() == [token]


def counts(provider: Provider, logits: npt.ArrayLike, params: SamplingParams, draws: int) -> npt.NDArray[np.int64]:
    """How often each token comes in `draws` rows that differ in their position only."""
    row = np.array(logits, np.float32)
    table = SamplingTable(1, len(row))
    table.set(0, params, seed=11, choice=0, prompt_len=1)
    output = provider(table).run(
        0,
        np.tile(row, (draws, 1)),
        np.zeros(draws, np.int32),
        np.arange(1, draws + 1, dtype=np.int32),
        np.ones(draws, np.bool_),
        np.full(draws, -1, np.int32),
        np.zeros((1, draws + 2), np.int32),
    )
    return np.bincount(output.tokens, minlength=len(row))


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=1.0), [0, 1, 2, 3, 4]),
        (SamplingParams(temperature=0.5), [0, 1, 2, 3, 4]),
        (SamplingParams(temperature=1.5, top_k=3), [0, 1, 2]),
        (SamplingParams(top_p=0.72), [0, 1, 2]),
        (SamplingParams(top_p=0.69), [0, 1]),
        (SamplingParams(min_p=0.5), [0, 1]),
        (SamplingParams(top_k=3, top_p=0.75), [0, 1]),
        (SamplingParams(min_p=0.4, top_p=0.75), [0, 1]),
    ],
)
def test_tokens_follow_the_truncated_distribution(provider: Provider, params: SamplingParams, kept: list[int]) -> None:
    # 0.4 0.3 0.18 0.07 0.05: after top_k 3 the likeliest two hold 0.795 of what is left
    probability = np.array([0.4, 0.3, 0.18, 0.07, 0.05])
    draws = 2000
    seen = counts(provider, np.log(probability), params, draws)
    expected = np.zeros(5)
    expected[kept] = probability[kept] ** (1 / params.temperature)
    expected *= draws / expected.sum()
    assert np.all(seen[expected == 0] == 0)
    chi_square = ((seen - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi_square < 20  # 4 degrees of freedom: passed by chance alone with 1 - 5e-4


def test_tokens_tied_with_the_last_kept_are_kept(provider: Provider) -> None:
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.5), SamplingParams(min_p=0.4)):
        seen = counts(provider, np.log([0.4, 0.2, 0.2, 0.1, 0.1]), params, 300)
        assert np.flatnonzero(seen).tolist() == [0, 1, 2]


def test_scoring_takes_the_known_token(provider: Provider) -> None:
    logits = np.log([0.1, 0.6, 0.3])
    output = run_one(provider, logits, SamplingParams(), history=(0, 2), position=1, sample=False, top=2)
    assert output.tokens.tolist() == [2]
    assert output.logprob is not None and output.rank is not None
    assert output.top_ids is not None and output.top_logprobs is not None
    np.testing.assert_allclose(output.logprob, np.log([0.3]), rtol=1e-5)
    assert output.rank.tolist() == [2]
    assert output.top_ids.tolist() == [[1, 2]]
    np.testing.assert_allclose(output.top_logprobs, np.log([[0.6, 0.3]]), rtol=1e-5)


def test_each_row_reports_as_many_as_it_asked_for(provider: Provider) -> None:
    table = SamplingTable(1, 3)
    table.set(0, greedy(), seed=0, choice=0, prompt_len=1)
    logits = np.array([[0, 1, 2]] * 3, np.float32)
    at, slots = int32([1, 2, 3]), int32([0, 0, 0])
    output = provider(table).run(
        0, logits, slots, at, np.ones(3, np.bool_), int32([-1, 5, 1]), np.zeros((1, 9), np.int32)
    )
    assert output.rank is not None and output.logprob is not None
    assert output.top_ids is not None and output.top_logprobs is not None
    assert output.top_ids.tolist() == [[-1] * 5, [2, 1, 0, -1, -1], [2, -1, -1, -1, -1]]
    assert output.rank.tolist() == [0, 1, 1]
    assert np.isneginf(output.top_logprobs[0]).all() and np.isneginf(output.top_logprobs[2, 1:]).all()
    assert output.logprob[0] == MIN_LOGPROB


def random_params(random: np.random.Generator, vocab: int) -> SamplingParams:
    """Each feature is on about as often as off."""

    def maybe(value: float, off: float) -> float:
        return float(value) if random.random() < 0.5 else off

    return SamplingParams(
        temperature=maybe(random.uniform(0.05, 2), random.choice([0.0, 1.0])),
        top_p=maybe(random.uniform(0.01, 1), 1.0),
        top_k=int(maybe(random.integers(1, vocab + 5), 0)),
        min_p=maybe(random.choice([1.0, 0.1, 1e-3]), 0.0),
        repetition_penalty=maybe(random.uniform(0.5, 2), 1.0),
        frequency_penalty=maybe(random.uniform(-2, 2), 0.0),
        presence_penalty=maybe(random.uniform(-2, 2), 0.0),
        max_tokens=None,
        min_tokens=int(maybe(random.integers(0, 30), 0)),
        stop_token_ids=random.integers(0, vocab, 3).tolist(),
        allowed_token_ids=random.integers(0, vocab, random.integers(1, vocab + 1)).tolist()
        if random.random() < 0.3
        else None,
        bad_words_token_ids=[
            random.integers(0, vocab, random.integers(1, 4)).tolist() for _ in range(random.integers(0, 4))
        ],
        logit_bias={int(t): float(random.uniform(-9, 9)) for t in random.integers(0, vocab, random.integers(0, 4))},
    )


def random_logits(random: np.random.Generator, rows: int, vocab: int) -> npt.NDArray[np.float32]:
    """Peaked, flat and coarse (full of ties) rows, some with tokens that cannot come, some not finite."""
    logits = random.normal(size=(rows, vocab)) * random.choice([0.1, 1, 5, 30], (rows, 1)) + random.normal(
        size=(rows, 1)
    )
    coarse = random.random(rows) < 0.3
    logits[coarse] = np.rint(logits[coarse])
    logits[random.random((rows, vocab)) < random.choice([0, 0.5], (rows, 1))] = -np.inf
    if random.random() < 0.2:
        logits[random.integers(rows), random.integers(vocab)] = random.choice([np.nan, np.inf])
    return logits.astype(np.float32)


@pytest.mark.parametrize("isa", KERNELS)
@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 6), vocab=st.integers(1, 700) | st.just(5000), seed=st.integers(0, 2**32 - 1))
def test_kernels_equal_the_reference_to_the_bit(isa: str, rows: int, vocab: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    table = SamplingTable(4, vocab)
    for slot in range(4):
        params = random_params(random, vocab)
        eos = (int(random.integers(vocab)),)
        table.set(slot, params, seed=int(random.integers(-(2**63), 2**63)), choice=slot, prompt_len=slot, eos_ids=eos)
    arguments = (
        7,
        random_logits(random, rows, vocab),
        int32(random.integers(0, 4, rows)),
        int32(random.integers(3, 40, rows)),
        random.random(rows) < 0.8,
        int32(random.integers(-1, 21, rows)),
        int32(random.integers(0, min(vocab, int(random.choice([2, vocab]))), (4, 40))),
        TokenMasks(
            int32(random.integers(-1, 3, rows)),
            random.integers(0, 2**32, (3, -(-vocab // 32)), np.uint32)
            if random.random() < 0.7
            else np.zeros((3, -(-vocab // 32)), np.uint32),
        )
        if random.random() < 0.5
        else None,
    )
    seen, expected = KERNELS[isa](table).run(*arguments), ReferenceSampler(table).run(*arguments)
    for name in ("tokens", "failed", "logprob", "rank", "top_ids", "top_logprobs"):
        assert np.array_equal(getattr(seen, name), getattr(expected, name)), name


@pytest.mark.parametrize("isa", KERNELS)
def test_a_token_depends_on_its_row_alone(isa: str) -> None:
    random = np.random.default_rng(5)
    vocab, rows = 3000, 24
    table = SamplingTable(rows, vocab)
    for slot in range(rows):
        table.set(slot, random_params(random, vocab), seed=slot, choice=0, prompt_len=2)
    logits = random_logits(random, rows, vocab)
    slots, positions = np.arange(rows, dtype=np.int32), int32(random.integers(3, 20, rows))
    sample, top = np.ones(rows, np.bool_), np.full(rows, 3, np.int32)
    history = int32(random.integers(0, vocab, (rows, 20)))
    whole = KERNELS[isa](table).run(0, logits, slots, positions, sample, top, history)
    alone = cpu_sampling.CpuSampler(table, kernels=_kernels.Kernels(isa), pool=_kernels.ThreadPool(1))
    for row in random.permutation(rows):
        one = slice(row, row + 1)
        output = alone.run(0, logits[one], slots[one], positions[one], sample[one], top[one], history)
        assert output.tokens[0] == whole.tokens[row]
        assert np.array_equal(output.logprob, whole.logprob[one])
        assert np.array_equal(output.top_ids, whole.top_ids[one])


def test_a_cleared_slot_forgets(provider: Provider) -> None:
    table = SamplingTable(1, 4)
    params = SamplingParams(temperature=2, logit_bias={3: 50.0}, min_tokens=9, stop_token_ids=[0], repetition_penalty=9)
    params = msgspec.structs.replace(params, allowed_token_ids=[3], bad_words_token_ids=[[0]])
    table.set(0, params, seed=1, choice=1, prompt_len=1)
    table.clear(0)
    row = np.array([[3, 2, 1, 0]], np.float32)
    output = provider(table).run(
        0, row, int32([0]), int32([1]), np.ones(1, np.bool_), int32([-1]), np.zeros((1, 4), np.int32)
    )
    assert output.tokens.tolist() == [0]


@pytest.mark.parametrize("isa", KERNELS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": int32([2])}, "slots must lie in 0..1, got 2"),
        ({"slots": int32([-1])}, "slots must lie"),
        ({"positions": int32([9])}, "positions must lie in the history of 8 tokens, got 9"),
        ({"positions": int32([8]), "sample": np.zeros(1, np.bool_)}, "positions must lie"),
        ({"history": np.full((2, 8), 5, np.int32), "sample": np.zeros(1, np.bool_)}, "a scored token must lie"),
        ({"logits": np.zeros((1, 4), np.float32)}, "logits must be as wide as the vocabulary"),
        ({"masks": TokenMasks(int32([1]), np.zeros((1, 1), np.uint32))}, "must be one of the masks"),
        ({"masks": TokenMasks(int32([0]), np.zeros((1, 2), np.uint32))}, "as wide as the vocabulary"),
        ({"masks": TokenMasks(int32([0, 0]), np.zeros((1, 1), np.uint32))}, "for each row"),
        ({"logits": np.zeros((2, 5), np.float32)}, "must have one row each"),
    ],
)
def test_indices_out_of_range_are_refused(isa: str, change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "logits": np.zeros((1, 5), np.float32),
        "slots": int32([0]),
        "positions": int32([1]),
        "sample": np.ones(1, np.bool_),
        "top": int32([-1]),
        "history": np.zeros((2, 8), np.int32),
    }
    with pytest.raises(ValueError, match=message):
        KERNELS[isa](SamplingTable(2, 5)).run(0, **{**arguments, **change})  # type: ignore[arg-type]

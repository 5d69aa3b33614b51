"""Guessing ahead in virtual time: what follows by arithmetic when all guesses are right, none, or a share; and that who
guesses costs what its model's steps take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.models.published import published_model
from headrace.plan.asking import ask
from headrace.plan.search import plan
from headrace.policy.draft_model import DraftModel
from headrace.policy.latency import StepWork
from headrace.policy.speculation import Context
from headrace.simulate.asking import Asked
from headrace.simulate.executor import ANSWER_TOKEN
from headrace.simulate.fleet import Fleet
from headrace.simulate.guesses import Guesser, Guessing
from headrace.simulate.ledger import Entry
from headrace.simulate.result import Result
from headrace.simulate.simulator import Simulation, simulate
from headrace.workload.demand import Demand

ALONE = Asked("llama-3-8b", "h100", block_size=64, enable_prefix_caching=False).fleet()
PROMPT, DRAFTS = 100, 4


def guessing(accepted: float, **changes: Any) -> Fleet:
    return replace(ALONE, num_speculative_tokens=DRAFTS, acceptance=accepted, **changes)


def entry(fleet: Fleet, output: int) -> Entry:
    run = Simulation([Demand(0.0, ((1, PROMPT),), output)], fleet, "round-robin", seed=0)
    run.run()
    return run.ledger.entries[0]


def prompt_seconds(fleet: Fleet) -> float:
    return fleet.pace()(StepWork(PROMPT, 1, 0, PROMPT * PROMPT / 2, 1, 1, 1))


def test_when_all_guesses_are_right_a_step_brings_them_and_one_more() -> None:
    rows, steps, fleet = DRAFTS + 1, 20, guessing(1.0)
    seconds = prompt_seconds(fleet)
    for step in range(steps):
        start = PROMPT + step * rows
        seconds += fleet.pace()(StepWork(rows, 1, 0, rows * (start + rows / 2), rows, rows, 1))
    found = entry(fleet, 1 + steps * rows)
    assert found.last == pytest.approx(seconds, rel=1e-12)
    assert found.last < 0.3 * entry(ALONE, 1 + steps * rows).last


def test_a_model_that_guesses_takes_its_steps() -> None:
    rows, steps = DRAFTS + 1, 20
    free = guessing(1.0)
    fleet = guessing(1.0, drafter=DraftModel(published_model("llama-3.2-1b")))
    guesses = fleet.guessing
    assert guesses is not None and guesses.pace is not None
    seconds = 0.0
    for step in range(steps):
        length = PROMPT + 1 + step * rows
        # The prompt at first, then its last guess and the token after it; then a token for each further guess.
        new = length if step == 0 else 2
        seconds += guesses.pace(StepWork(new, 1, 0, new * (length - new / 2), 1, 1, 1))
        seconds += sum(guesses.pace(StepWork(1, 1, length + i, 0.0, 1, 1)) for i in range(1, DRAFTS))
    output = 1 + steps * rows
    assert entry(fleet, output).last - entry(free, output).last == pytest.approx(seconds, rel=1e-9)


def test_what_guesses_takes_memory_for_weights_and_for_what_it_has_read() -> None:
    # An 8B of 32 layers guesses for itself: of 58.2 GB beside one, another 16.1 GB are gone, and a token takes twice.
    alone, twice = ALONE, guessing(0.5, drafter=DraftModel(ALONE.spec))
    weights, token = 2 * 8_030_261_248, 128 * 1024
    left = int(0.9 * 80 * 2**30 - 3e9) - weights
    assert alone.capacity().num_blocks[0] == pytest.approx(left / (64 * token), abs=1)
    assert twice.capacity().num_blocks[0] == pytest.approx((left - weights) / (64 * 2 * token), abs=1)


@pytest.mark.parametrize("output", [1, 2, 300])
def test_when_no_guess_is_right_nothing_is_guessed_and_nothing_changes(output: int) -> None:
    assert entry(guessing(0.0), output) == entry(ALONE, output)


@pytest.mark.parametrize("accepted", [0.6, 0.85])
def test_a_step_brings_what_follows_from_the_share_that_is_right(accepted: float) -> None:
    demands = [Demand(0.0, ((1, PROMPT),), 3000)]
    result, plain = simulate(demands, guessing(accepted)), simulate(demands, ALONE)
    expected = (1 - accepted ** (DRAFTS + 1)) / (1 - accepted)
    assert result.speculation is not None
    assert result.speculation.acceptance_length == pytest.approx(expected, rel=0.05)
    assert result.speculation.proposed == pytest.approx(DRAFTS * 3000 / expected, rel=0.06)
    # A step of five rows takes hardly longer than one of one row, so this is how much faster it is.
    assert plain.tpot_ms.p50 / result.tpot_ms.p50 == pytest.approx(expected, rel=0.1)


@given(st.integers(0, 2**63), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50), st.integers(1, 4)), min_size=1))
def test_what_can_be_guessed_hangs_on_request_and_position_alone(seed: int, asked: list[tuple[int, int, int]]) -> None:
    guesser = Guesser(Guessing(4, 0.5), seed)
    contexts = [
        Context(slot, 0, ("", ""), np.zeros(length, np.int32), most, request)
        for slot, (request, length, most) in enumerate(asked)
    ]
    right: dict[tuple[int, int], bool] = {}
    for context, proposal in zip(contexts, guesser.propose(contexts), strict=True):
        assert len(proposal.tokens) == len(proposal.odds) == context.most
        assert proposal.odds == [0.5, 0.25, 0.125, 0.0625][: context.most]
        for ahead, token in enumerate(proposal.tokens):
            place = context.seed, len(context.tokens) + ahead
            assert right.setdefault(place, token == ANSWER_TOKEN) == (token == ANSWER_TOKEN)


def test_seeds_decide_and_the_same_seed_gives_the_same() -> None:
    demands = [Demand(0.1 * index, ((index, 50),), 60) for index in range(20)]

    def run(seed: int) -> Result:
        return replace(simulate(demands, guessing(0.7), seed=seed), wall_s=0.0)

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_speculative_tokens": 65}, "num_speculative_tokens must be from 0 to 64, got 65"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens must be from 0 to 64, got -1"),
        ({"num_speculative_tokens": 2, "acceptance": 1.5}, "acceptance must be from 0 to 1, got 1.5"),
        ({"num_speculative_tokens": 2, "acceptance": float("nan")}, "acceptance must be from 0 to 1, got nan"),
        ({"num_speculative_tokens": 0, "acceptance": 0.5}, "acceptance goes with num_speculative_tokens above 0"),
        (
            {"num_speculative_tokens": 0, "speculative_model": "llama-3-8b"},
            "speculative_model needs num_speculative_tokens above 0",
        ),
        ({"num_speculative_tokens": 2, "speculative_model": "qwen3-0.6b"}, "the model's own 128256 tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_so_by_the_planner(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Asked("llama-3-70b", "h200", tensor_parallel_size=2, **changes).fleet()
    with pytest.raises(ConfigError, match=says):
        ask("llama-3-70b", "h200", qps=1, **changes)


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_the_planner_takes_guesses_that_are_never_or_always_right(acceptance: float) -> None:
    chosen = plan(ask("llama-3-8b", qps=5, num_speculative_tokens=3, acceptance=acceptance, simulate=False))
    assert chosen.gpus > 0

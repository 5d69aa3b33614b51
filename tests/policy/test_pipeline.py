"""Pipelines: layers cut evenly, nothing kept twice or lost, and the formula against schedules played out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.models.published import published_model
from headrace.policy.pipeline import cut, period

LLAMA = published_model("llama-3-70b")
STAGES = st.lists(st.floats(0.001, 10.0), min_size=1, max_size=6)


def play(stages: list[float], micro: int, turns: int) -> list[list[float]]:
    """When each micro-batch left in each turn, entering anew when it has left: stages take one at a time, in order."""
    free = [0.0] * len(stages)
    ready = [0.0] * micro
    left = []
    for _ in range(turns):
        for one in range(micro):
            now = ready[one]
            for stage, taken in enumerate(stages):
                now = free[stage] = max(now, free[stage]) + taken
            ready[one] = now
        left.append(list(ready))
    return left


@given(stages=STAGES, micro=st.integers(1, 8))
def test_the_formula_is_what_a_played_schedule_takes(stages: list[float], micro: int) -> None:
    turns = play(stages, micro, 40)
    assert period(stages, micro) == pytest.approx(turns[-1][0] - turns[-2][0])


def test_a_schedule_by_hand() -> None:
    # Two going round three stages leave one stage idle; four queue for a place.
    assert period([2.0] * 3, 2) == 6.0
    assert period([2.0] * 3, 4) == 8.0


@given(stages=st.integers(1, 80))
def test_stages_have_all_layers_and_weights_between_them(stages: int) -> None:
    parts = cut(LLAMA, stages)
    sizes = [len(part.spec.layers) for part in parts]
    assert sum(sizes) == 80 and max(sizes) - min(sizes) <= 1
    for dtype in ("bf16", "fp8"):
        # The last norm is counted with each stage: 16 KiB.
        kept = sum(part.weight_bytes(dtype) for part in parts)
        assert 0 <= kept - LLAMA.weight_bytes(dtype) <= stages * 8192 * 2


def test_both_ends_keep_a_tied_embedding() -> None:
    spec = published_model("smollm2-135m")
    table = spec.vocab_size * spec.hidden * 2
    first, middle, last = cut(spec, 3)
    assert first.weight_bytes("bf16") == last.weight_bytes("bf16") == middle.weight_bytes("bf16") + table


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="pipeline parallel size must be 1 to 80, the model's layers, got 81"):
        cut(LLAMA, 81)

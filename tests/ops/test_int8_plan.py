"""Which op quantizes what a quantized linear reads."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.ops.int8_plan import plan_int8
from headrace.ops.program import Attention, Linear, RmsNorm, Softcap
from headrace.ops.registry import random_matrix

RNG = np.random.default_rng(0)
MATRICES = {
    "q": random_matrix(RNG, "q8", 8, 64),
    "q32": random_matrix(RNG, "q8", 8, 32),
    "f": random_matrix(RNG, "f32", 8, 64),
}


def attention(head_dim):
    return Attention("qkv", "x", 0, 0, 4, 2, head_dim, head_dim, 1.0)


def test_a_float_linear_needs_nothing():
    plan = plan_int8([RmsNorm("a", "x", "w", 1e-5), Linear("x", "y", "f")], MATRICES)
    assert (plan.widths, plan.fused, plan.separate) == ({}, {}, {})


def test_the_producer_quantizes_once_for_all_readers_of_one_write():
    ops = [RmsNorm("a", "x", "w", 1e-5), Linear("x", "y", "q"), Linear("x", "z", "q"), RmsNorm("a", "x", "w", 1e-5)]
    plan = plan_int8([*ops, Linear("x", "y", "q")], MATRICES)
    assert plan.widths == {"x": 64}
    assert plan.fused == {0: 64, 3: 64}
    assert plan.separate == {}


@pytest.mark.parametrize(
    "producer",
    [Linear("a", "x", "f"), Softcap("x", 3.0), RmsNorm("a", "x", "w", 1e-5, 8, (0, 16)), attention(head_dim=24)],
)
def test_a_producer_whose_tasks_have_no_whole_runs_is_followed_by_an_op(producer):
    plan = plan_int8([producer, Linear("x", "y", "q")], MATRICES)
    assert plan.separate == {0: ("x", 64)}
    assert plan.fused == {}


def test_attention_quantizes_the_heads_of_a_task():
    assert plan_int8([attention(head_dim=16), Linear("x", "y", "q")], MATRICES).fused == {0: 64}


def test_two_widths_of_one_write_are_refused():
    with pytest.raises(ValueError, match="64 and 32"):
        plan_int8([Softcap("x", 3.0), Linear("x", "y", "q"), Linear("x", "z", "q32")], MATRICES)

"""The host beside the devices; runs of decodes are their single steps, to the bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.hardware import known_hardware
from headrace.models.published import published_model
from headrace.policy.latency import StepWork
from headrace.policy.pace import Host, Pace
from headrace.policy.roofline import Roofline, Serving

ROOFLINE = Roofline(published_model("llama-3-8b"), Serving(known_hardware("h100")))
HOST = Host(kernels=1.1, step=2e-3, request=3e-5)


def decodes(requests: int, context: int) -> StepWork:
    return StepWork(requests, requests, context, 0.0, requests, requests)


@given(st.integers(1, 40), st.integers(1, 9000), st.integers(1, 300))
def test_a_run_is_its_single_steps(requests: int, each: int, steps: int) -> None:
    pace, work = Pace(ROOFLINE, HOST), decodes(requests, requests * each)
    assert pace.run(work, steps).tolist() == [pace(work.later(i)) for i in range(steps)]


@given(st.integers(1, 40), st.integers(1, 9000))
def test_lines_between_points_are_the_roofline(requests: int, each: int) -> None:
    work = decodes(requests, requests * each)
    expected = 1.1 * ROOFLINE(work) + 2e-3 + 3e-5 * requests
    assert Pace(ROOFLINE, HOST)(work) == pytest.approx(expected, rel=1e-9)


def test_prompts_are_the_roofline_too() -> None:
    work = StepWork(600, 2, 900, 600 * 300.0, 2, 2, 1)
    assert Pace(ROOFLINE, HOST)(work) == pytest.approx(1.1 * ROOFLINE(work) + 2e-3 + 6e-5)

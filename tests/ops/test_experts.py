"""Products with experts on the kernels: the same bits for a row alone and among rows that share its experts, on any
number of threads, and one row's NaN stays its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.ops.agreement import cpu, outcome

from headrace.ops.cpu import available_isas
from headrace.ops.program import ExpertLinear, RouteExperts
from headrace.ops.registry import OPS

EXPERTS = 5


def result(case, threads, isa):
    outputs, _ = outcome(case, cpu(case, threads=threads, isa=isa))
    return outputs[case.outputs[0]].view(np.uint32)


def of_rows(case, make, rows):
    """The same case with only these of its rows."""
    part = make(len(rows))
    return replace(
        part,
        program=replace(part.program, matrices=case.program.matrices),
        fill={name: values[rows] for name, values in case.fill.items()},
    )


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("shared_input", [True, False])
@pytest.mark.parametrize("scheme", ["f32", "bf16", "q8", "q4"])
def test_a_row_does_not_depend_on_the_others(scheme, shared_input, isa):
    def make(rows):
        return OPS[ExpertLinear].make(
            np.random.default_rng(0), rows=rows, experts=EXPERTS, scheme=scheme, shared_input=shared_input, k_segment=32
        )

    case = make(90)
    case.fill["router"][:, 1] += 2  # more rows for one expert than a kernel takes together
    together = result(case, 1, isa)
    np.testing.assert_array_equal(result(case, 3, isa), together)
    for rows in ([0], [3, 4], list(range(40, 89))):
        np.testing.assert_array_equal(result(of_rows(case, make, rows), 2, isa), together[rows])
    case.fill["router"][7], case.fill["input"][8] = np.nan, np.nan
    others = [row for row in range(90) if row not in (7, 8)]
    np.testing.assert_array_equal(result(case, 2, isa)[others], together[others])


@pytest.mark.parametrize("isa", available_isas())
def test_routes_of_nan_are_experts_that_exist(isa):
    case = OPS[RouteExperts].make(np.random.default_rng(0), rows=3, experts=6, taken=4)
    case.fill["x"][0], case.fill["x"][1, 2:] = np.nan, np.nan
    routes = result(case, 1, isa).view(np.float32)
    assert ((routes[:, :4] >= 0) & (routes[:, :4] < 6)).all()
    assert np.isnan(routes[:2, 4:]).all()
    assert np.isfinite(routes[2]).all()

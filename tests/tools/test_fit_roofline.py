"""The committed numbers are those that the script finds in the tables."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from headrace.core.hardware import known_hardware
from headrace.policy.fitted_kernels import kernels_of

pytest.importorskip("pyarrow")
TABLES = Path(os.environ.get("HEADRACE_DATA", "../shared/data")) / "gpu_timings"
TOOL = Path(__file__).resolve().parents[2] / "tools" / "fit_roofline.py"
spec = importlib.util.spec_from_file_location("fit_roofline", TOOL)
fit_roofline = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fit_roofline)


@pytest.mark.skipif(not TABLES.exists(), reason=f"{TABLES} is absent: set HEADRACE_DATA")
def test_the_committed_numbers_are_the_fitted_ones():
    gpu, committed = known_hardware("a100"), kernels_of("a100")
    curve = dict(committed.gemm)["bf16"]
    numbers, error = fit_roofline.fit_gemm([gpu], "bf16")
    assert numbers[:4] == pytest.approx([curve.compute, curve.memory, curve.rows, curve.activations], rel=0.02)
    assert error < 0.08
    numbers, error = fit_roofline.fit_decode(known_hardware("h100"), "fp8")
    curve = kernels_of("h100").decode_of("fp8")
    assert numbers == pytest.approx([curve.memory, curve.entry, curve.fixed], rel=0.02)
    assert error < 0.06
    curve = committed.all_reduce
    numbers, error = fit_roofline.fit_all_reduce(gpu)
    assert numbers == pytest.approx([curve.link, curve.fixed, curve.rank], rel=0.02)
    assert error < 0.1


def test_descent_finds_the_numbers_behind_a_curve():
    x = fit_roofline.np.arange(1.0, 50.0)
    numbers, error = fit_roofline.descend(lambda at: at[0] + at[1] * x, 3.0 + 0.2 * x, (1.0, 1.0))
    assert numbers == pytest.approx([3.0, 0.2], rel=0.02)
    assert error < 0.01

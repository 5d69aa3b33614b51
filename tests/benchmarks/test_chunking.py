"""The report of benchmarks/chunking.py, on a short prompt."""

import importlib.util
from pathlib import Path

import pytest

from headrace.core.config import Config

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chunking.py"


@pytest.fixture(scope="module")
def chunking():
    spec = importlib.util.spec_from_file_location("chunking", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.WARM_PROMPT, module.WARM_TOKENS = 8, 2
    return module


def test_every_kind_is_measured_and_drawn(chunking, default_model, tmp_path):
    model = Config(model=str(default_model))
    kinds = {"whole": {"max_num_batched_tokens": 128}, "timed": {"max_num_batched_tokens": 128, "target_itl_ms": 1.0}}
    results = {name: chunking.measure(model, 64, 2, **settings) for name, settings in kinds.items()}
    for result in results.values():
        itl = result["itl_ms"]
        assert 0 < itl["p50"] <= itl["p99"] <= itl["longest"] <= result["ttft_ms"] * 2
    # A target that cannot be met takes the least chunk, 16 tokens, so each stream has a token in each of 4 steps.
    assert len(results["whole"]["points"]) == 2
    assert len(results["timed"]["points"]) == 8
    pytest.importorskip("matplotlib")
    chunking.draw_picture(results, tmp_path / "gaps.svg")
    assert (tmp_path / "gaps.svg").read_text().startswith("<?xml")

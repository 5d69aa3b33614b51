"""Ropes as checkpoints write them: the old writing and the new are one, and values that mean nothing are refused by
name. That the tables are right is tested by the log-probabilities of models (test_families.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.test_families import CHECKPOINTS, LONGROPE, YARN, program_of
from tests.models.test_loader import change_config
from tests.models_for_tests import make_checkpoint

from headrace.core.errors import ModelError
from headrace.core.model_spec import Rope
from headrace.models.loader import load_model
from headrace.models.lowering import lower
from headrace.models.rope_table import rope_table


def test_ropes_by_layer_are_read_in_the_old_writing_and_the_new(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    settings = CHECKPOINTS["gemma3"] | {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, **scaling},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    }
    make_checkpoint(tmp_path, **settings)
    new = load_model(tmp_path).spec
    assert {layer.attention.rope for layer in new.layers} == {
        Rope(5000.0, 24),
        Rope(1e6, 24, "linear", (("factor", 8.0),)),
    }
    old: dict[str, Any] = {"rope_parameters": ..., "layer_types": ..., "sliding_window_pattern": 6}
    change_config(tmp_path, rope_theta=1e6, rope_local_base_freq=5000.0, rope_scaling=scaling, **old)
    assert load_model(tmp_path).spec == new


def test_longrope_is_read_in_the_old_writing_and_the_new(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, **CHECKPOINTS["phi3, long"])
    new = load_model(tmp_path).spec
    scaling = {key: LONGROPE[key] for key in ("short_factor", "long_factor")}
    for kind in ("su", "longrope"):
        change_config(
            tmp_path,
            rope_parameters=...,
            rope_theta=10000.0,
            rope_scaling={"type": kind, **scaling},
            original_max_position_embeddings=32,
        )
        assert load_model(tmp_path).spec == new


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({**YARN, "rope_theta": 0.5}, "rope.rope_theta must be more than 1, got 0.5"),
        ({**YARN, "original_max_position_embeddings": 1}, "original_max_position_embeddings must be more than 1"),
        ({**YARN, "factor": -2}, "rope.factor must be a positive number"),
        ({**LONGROPE, "short_factor": [1.0]}, "rope.short_factor must be a list of 8 positive numbers"),
        ({**LONGROPE, "long_factor": [1.0] * 7 + [0.0]}, r"rope.long_factor\[7\] must be a positive number, got 0.0"),
        ({"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.125}, "more than 2 rotary dimensions"),
        ({"partial_rotary_factor": 3.0}, "heads of 16 with 48 rotary dimensions"),
        ({"rope_type": ["yarn"]}, "rope.rope_type must be one of default"),
    ],
)
def test_a_rope_that_means_nothing_is_refused_by_name(tmp_path: Path, rope: dict[str, Any], message: str) -> None:
    make_checkpoint(tmp_path)
    change_config(tmp_path, rope_parameters=rope)
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path)


def test_a_context_stays_within_bounds(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    change_config(tmp_path, rope_parameters={**YARN, "factor": 1e29})
    assert load_model(tmp_path).spec.max_position == 1 << 24


def test_only_ropes_that_depend_on_the_longest_sequence_change_with_it(tmp_path: Path) -> None:
    scaling = tuple(sorted({"factor": 4.0, "original": 32}.items()))
    for kind, changes in (("dynamic", True), ("linear", False)):
        rope = Rope(10000.0, 16, kind, scaling)  # type: ignore[arg-type]
        assert np.array_equal(rope_table(rope, 100)[:20], rope_table(rope, 20)) != changes
    make_checkpoint(tmp_path, **CHECKPOINTS["phi3, long"])
    loaded = load_model(tmp_path)
    prints = {
        lower(
            loaded.spec, loaded.weights, quantization="auto", kv_dtype="fp32", block_size=16, max_positions=positions
        ).fingerprint
        for positions in (20, 100)
    }
    assert len(prints) == 2
    assert len(program_of(tmp_path).vectors["rope0"]) == 75

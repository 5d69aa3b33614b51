"""plan_memory: what it grants always fits, and every refusal names a setting that works."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.config import Config
from headrace.core.errors import ConfigError, HeadraceError, MachineError
from headrace.core.model_spec import KVGroup
from headrace.worker.memory_plan import KV_SHARE, RESERVE_BYTES, plan_memory

MIB, GIB = 2**20, 2**30
FULL = KVGroup("full", tuple(range(30)), 3, 64, 64)
WINDOW = KVGroup("window", tuple(range(10)), 2, 64, 64, window=128)
BLOCK = 30 * 3 * 64 * 2 * 2 * 16


def plan(groups=(FULL,), *, max_position=8192, allowed=8 * GIB, available=None, weights=100 * MIB, **settings):
    return plan_memory(
        Config(**settings).resolve(),
        groups,
        max_position=max_position,
        weight_bytes=weights,
        activation_bytes=10 * MIB,
        allowed_bytes=allowed,
        available_bytes=allowed if available is None else available,
    )


@given(
    st.sampled_from([(FULL,), (FULL, WINDOW), (WINDOW,)]),
    st.integers(400 * MIB, 64 * GIB),
    st.floats(0.05, 1),
    st.integers(1, 64),
    st.sampled_from(["bf16", "int8", "fp32"]),
    st.none() | st.integers(1, 9000),
)
def test_what_is_granted_fits(groups, allowed, share, seqs, dtype, max_model_len):
    try:
        granted = plan(
            groups,
            allowed=allowed,
            available=int(allowed * share),
            max_num_seqs=seqs,
            kv_cache_dtype=dtype,
            max_model_len=max_model_len,
        )
    except HeadraceError as error:
        assert str(error)
        return
    used = granted.weight_bytes + granted.activation_bytes + granted.kv_bytes + RESERVE_BYTES
    assert used <= granted.available_bytes
    assert granted.kv_bytes <= allowed * KV_SHARE
    assert 1 <= granted.max_model_len <= 8192
    assert granted.max_model_len == max_model_len or max_model_len is None
    assert granted.longest_sequences >= 1
    if groups == (FULL,):
        assert granted.num_blocks[0] * 16 >= granted.max_model_len


def test_no_more_than_all_slots_can_use():
    assert plan(max_num_seqs=2, max_model_len=100, allowed=64 * GIB).num_blocks == (14,)


def test_a_window_holds_its_steps_under_way_and_no_more():
    """As many longest sequences as there are slots, though the window's group has far fewer blocks than their
    length would take."""
    for depth, window_blocks in ((1, 42), (2, 74)):
        granted = plan((FULL, WINDOW), max_num_seqs=4, pipeline_depth=depth, allowed=64 * GIB)
        assert granted.sequence_blocks == (512, window_blocks)
        assert granted.longest_sequences == 4


def test_the_default_length_shrinks_to_what_fits():
    assert plan(kv_cache_memory_bytes=10 * BLOCK).max_model_len == 160


def test_a_length_that_cannot_fit_is_refused_with_one_that_does():
    with pytest.raises(ConfigError, match="max_model_len") as caught:
        plan(max_model_len=4096, kv_cache_memory_bytes=10 * BLOCK)
    fits = int(re.search(r"max_model_len to at most (\d+)", str(caught.value)).group(1))
    enough = int(re.search(r"kv_cache_memory_bytes to at least (\d+)", str(caught.value)).group(1))
    assert plan(max_model_len=fits, kv_cache_memory_bytes=10 * BLOCK).max_model_len == fits
    assert plan(max_model_len=4096, kv_cache_memory_bytes=enough).max_model_len == 4096


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_model_len": 8193}, "max_model_len"),
        ({"num_kv_blocks": 10**6}, "num_kv_blocks"),
        ({"kv_cache_memory_bytes": 10**12}, "kv_cache_memory_bytes"),
        ({"kv_cache_memory_bytes": BLOCK - 1}, "kv_cache_memory_bytes"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, field):
    with pytest.raises(ConfigError) as caught:
        plan(**settings)
    assert caught.value.field == field


def test_a_model_too_large_for_the_machine_is_the_machines_fault():
    with pytest.raises(MachineError, match="smaller or more quantized"):
        plan(weights=9 * GIB)


def test_memory_below_the_cache_is_divided_like_the_cache_and_leaves_it_room():
    granted = plan((FULL, WINDOW), kv_offloading_size=1.0, max_num_seqs=4)
    below = [n * size for n, size in zip(granted.host_blocks, granted.block_bytes, strict=True)]
    assert GIB - sum(granted.block_bytes) <= sum(below) <= GIB
    assert granted.host_blocks[0] * granted.num_blocks[1] == pytest.approx(
        granted.host_blocks[1] * granted.num_blocks[0], rel=0.05
    )
    used = granted.weight_bytes + granted.activation_bytes + granted.kv_bytes + sum(below) + RESERVE_BYTES
    assert used <= granted.available_bytes
    assert plan().host_blocks == ()


@pytest.mark.parametrize("size", [8.0, 1e-6])
def test_memory_below_the_cache_must_fit_and_hold_a_block(size):
    with pytest.raises(ConfigError, match="kv_offloading_size"):
        plan(kv_offloading_size=size)

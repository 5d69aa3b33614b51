"""The reference itself, against torch: the kernels are held to it, so it is held to something else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.ops.agreement import outcome
from tests.tiny_models import tiny_program
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from headrace.ops.program import Attention
from headrace.ops.reference import ACTIVATIONS, ReferenceProgram, rotate, round_activations
from headrace.ops.registry import OPS, step_inputs


@pytest.mark.parametrize(("name", "theirs"), [("silu", silu), ("gelu_tanh", lambda x: gelu(x, approximate="tanh"))])
def test_activations(name, theirs):
    x = np.linspace(-200, 200, 4001, dtype=np.float32)
    np.testing.assert_allclose(ACTIVATIONS[name](x), theirs(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 9])
def test_attention_over_blocks_is_attention(window):
    case = OPS[Attention].make(
        np.random.default_rng(0), entries=((0, 40),), kv_dtype="fp32", window=window, rotary_dim=0
    )
    outputs, _ = outcome(case, ReferenceProgram(case.program, case.inputs))
    q, k, v = (torch.from_numpy(x) for x in np.split(case.fill["qkv"].reshape(40, 10, 32), [6, 8], axis=1))
    behind = torch.arange(40)[:, None] - torch.arange(40)
    mask = (behind >= 0) & (behind < (window or 40))
    expected = scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask, enable_gqa=True
    )
    np.testing.assert_allclose(outputs["attention"], expected.transpose(0, 1).reshape(40, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs_and_leaves_the_rest(interleaved):
    rng = np.random.default_rng(1)
    heads = rng.standard_normal((3, 2, 12), np.float32)
    angle = rng.random((3, 4), np.float32)
    turned = heads.copy()
    rotate(turned, np.stack([np.cos(angle), np.sin(angle)], 2), 8, interleaved=interleaved)
    np.testing.assert_array_equal(turned[..., 8:], heads[..., 8:])
    pairs = (lambda x: x[..., 0:8:2] + 1j * x[..., 1:8:2]) if interleaved else (lambda x: x[..., :4] + 1j * x[..., 4:8])
    np.testing.assert_allclose(pairs(turned), pairs(heads) * np.exp(1j * angle)[:, None], rtol=1e-5, atol=1e-5)


def test_rounded_activations_keep_the_largest_of_each_run_and_zeros():
    x = np.random.default_rng(2).standard_normal((4, 96), np.float32)
    x[1] = 0
    rounded = round_activations(x)
    runs, before = rounded.reshape(4, 3, 32), x.reshape(4, 3, 32)
    np.testing.assert_allclose(np.abs(runs).max(2), np.abs(before).max(2), rtol=1e-6)
    assert np.all(np.abs(runs - before) <= np.abs(before).max(2, keepdims=True) / 253)
    assert not rounded[1].any()


def test_a_sequence_in_one_step_or_token_by_token():
    program = tiny_program(kv_dtype="int8", windows=(None, 11))
    inputs = step_inputs(program.kv, [(0, 30)], np.random.default_rng(3), logits=1)
    inputs.logit_rows[0] = 29
    runner = ReferenceProgram(program, inputs)
    whole = runner.run().copy()
    tokens = inputs.tokens.copy()
    inputs.rows, inputs.logit_rows[0] = 1, 0
    for position, token in enumerate(tokens):
        inputs.tokens[0], inputs.positions[0] = token, position
        inputs.entry_start[0], inputs.entry_count[0] = position, 1
        last = runner.run()
    np.testing.assert_allclose(last, whole, rtol=0, atol=2e-2 * np.abs(whole).max())

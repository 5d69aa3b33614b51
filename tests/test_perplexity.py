"""Quantized as stored, the default model predicts text nearly as well as in float32, whose logits are those of
transformers (tests/models/test_lowering.py).
"""

from __future__ import annotations

import time
from functools import partial

import pytest

from headrace.bench.perplexity import Perplexity, cut_windows, measure_perplexity
from headrace.commands.evaluate import tokenize_file
from headrace.core.config import Config
from headrace.engine.drive import drive
from headrace.launch import build_engine

WINDOW, WINDOWS = 256, 4


@pytest.fixture(scope="module")
def windows(default_model, data_folder) -> list[list[int]]:
    ids = tokenize_file(str(default_model), data_folder / "text" / "wikitext2_test.txt.gz")
    return cut_windows(ids, WINDOW, WINDOWS)


def perplexity_of(model, windows, **settings) -> Perplexity:
    config = Config(model=str(model), max_model_len=WINDOW + 1, num_kv_blocks=64, max_num_seqs=4, **settings)
    engine = build_engine(config.resolve()).engine
    return measure_perplexity(partial(drive, engine, clock=time.monotonic), windows, lambda tokens: None)


def test_weights_as_stored_cost_less_than_one_percent(default_model, windows):
    exact = perplexity_of(default_model, windows, quantization="none", kv_cache_dtype="fp32")
    stored = perplexity_of(default_model, windows)
    assert exact.tokens == stored.tokens == WINDOWS * (WINDOW - 1)
    assert stored.perplexity == pytest.approx(exact.perplexity, rel=0.01)

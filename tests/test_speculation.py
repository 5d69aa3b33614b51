"""Guessing ahead with real drafters and the real default model: the same text, fewer steps."""

from __future__ import annotations

import pytest
from tests.models_for_tests import make_checkpoint

from headrace import LLM, SamplingParams
from headrace.core.errors import ConfigError

PROMPT = "Once upon a time, in a small village, there lived a cat. " * 3 + "Once upon"
SETTINGS = {"max_model_len": 512, "num_kv_blocks": 128, "max_num_seqs": 4}


def answers(params, **settings):
    """Texts, log-probabilities, and what guessing ahead brought."""
    llm = LLM(**SETTINGS, **settings)
    outputs = llm.generate([PROMPT, "The answer is"], params)
    told = [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.outputs[0].finish_reason) for o in outputs]
    return told, llm.stats


GREEDY = SamplingParams(temperature=0, max_tokens=48, logprobs=2, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=32, presence_penalty=0.5, logprobs=0)


@pytest.mark.usefixtures("free_rows")
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_the_same_whoever_guesses(params, default_model):
    plain, stats = answers(params)
    assert stats.drafted_tokens == stats.accepted_tokens == 0
    for settings in ({"speculate": "ngram"}, {"speculate": "suffix"}, {"speculative_model": str(default_model)}):
        told, stats = answers(params, **settings)
        assert told == plain, settings
        assert stats.drafted_tokens > 0, settings


@pytest.mark.usefixtures("free_rows")
def test_a_model_that_guesses_for_itself_is_always_right(default_model):
    _, stats = answers(GREEDY, speculative_model=str(default_model), num_speculative_tokens=5)
    assert stats.accepted_tokens == stats.drafted_tokens > 0


def test_a_model_of_other_tokens_is_refused(tmp_path):
    make_checkpoint(tmp_path, "llama")
    with pytest.raises(ConfigError, match="speculative_model must have the model's own 49152 tokens"):
        LLM(**SETTINGS, speculative_model=str(tmp_path))

"""speculative_config and its kin: what they mean, and how what is wrong in them is told."""

from __future__ import annotations

import re

import pytest

from headrace.core.config import Config
from headrace.core.errors import ConfigError


def read(**settings):
    config = Config.from_settings(settings).resolve()
    return config.speculate, config.num_speculative_tokens, config.speculative_model


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({}, ("none", 8, None)),
        ({"speculate": "suffix"}, ("suffix", 8, None)),
        ({"speculative_config": '{"method": "suffix", "num_speculative_tokens": 3}'}, ("suffix", 3, None)),
        ({"speculative_config": {"method": "ngram"}}, ("ngram", 8, None)),
        ({"speculative_model": "small", "num_speculative_tokens": 5}, ("draft_model", 5, "small")),
        ({"speculative_config": {"model": "small"}}, ("draft_model", 8, "small")),
        ({"speculative_config": {"method": "ngram", "model": None, "prompt_lookup_max": None}}, ("ngram", 8, None)),
        ({"speculate": "ngram", "speculative_config": {"method": "ngram"}}, ("ngram", 8, None)),
        ({"speculate": "ngram", "speculative_config": {"num_speculative_tokens": 3}}, ("ngram", 3, None)),
    ],
)
def test_what_they_mean(settings, meant):
    assert read(**settings) == meant


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"speculate": "medusa"}, "speculate must be one of none, ngram, suffix, draft_model, got 'medusa'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be from 1 to 64, got 0"),
        ({"speculate": "draft_model"}, "speculative_model and speculate=draft_model go together"),
        ({"speculate": "suffix", "speculative_model": "small"}, "speculative_model and speculate=draft_model go"),
        ({"speculative_config": {"method": "eagle3"}}, "speculative_config method must be one of none, ngram, suffix"),
        ({"speculative_config": {"method": ["ngram"]}}, "speculative_config method must be str"),
        (
            {"speculative_config": {"prompt_lookup_max": 4}},
            "speculative_config prompt_lookup_max is a setting of other",
        ),
        (
            {"speculative_config": {"max_model_len": 4}},
            "speculative_config max_model_len is a setting of other engines",
        ),
        ({"speculative_config": {"eagle": None}}, "speculative_config has no 'eagle'"),
        (
            {"speculate": "ngram", "speculative_config": {"method": "suffix"}},
            "speculate is 'ngram', but 'suffix' in speculative_config: give it once",
        ),
        ({"speculative_config": "{"}, "speculative_config is not JSON"),
        (
            {"speculative_config": '{"method": "ngram", "method": "suffix"}'},
            "speculative_config cannot be read: 'method' is given twice: give it once",
        ),
        ({"speculative_config": "[" * 100_000}, "speculative_config cannot be read: it is nested too deeply"),
        (
            {"speculative_config": {"num_speculative_tokens": 3}},
            "speculative_config says not who guesses: give it a method (none, ",
        ),
        ({"speculative_config": {"model": ""}}, "speculative_model must not be empty"),
        ({"speculative_config": "[]"}, "speculative_config must be a JSON object"),
        ({"speculative_config": {"eagle": 1}}, "speculative_config has no 'eagle'; known are method"),
        ({"speculative_config": {"num_speculative_tokens": "5"}}, "num_speculative_tokens must be int, got '5'"),
    ],
)
def test_what_is_wrong_is_named(settings, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        read(**settings)

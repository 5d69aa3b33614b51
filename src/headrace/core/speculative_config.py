"""speculative_config, as other engines' users write it: one JSON object for what are settings of their own here."""

import json
from typing import Any

from headrace.core.errors import ConfigError, shown
from headrace.core.settings_json import read_settings_json

_NAMES = {"method": "speculate", "num_speculative_tokens": "num_speculative_tokens", "model": "speculative_model"}
_KINDS = {"method": str, "num_speculative_tokens": int, "model": str}
METHODS = ("none", "ngram", "suffix", "draft_model")
_ELSEWHERE = (
    "prompt_lookup_max",
    "prompt_lookup_min",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
    "draft_tensor_parallel_size",
    "disable_by_batch_size",
    "disable_padded_drafter_batch",
    "parallel_drafting",
    "speculative_token_tree",
    "rejection_sample_method",
    "acceptance_method",
    "posterior_threshold",
    "posterior_alpha",
    "disable_logprobs",
    "max_model_len",
    "quantization",
    "revision",
    "code_revision",
    "tokenizer_revision",
    "enforce_eager",
    "load_config",
)
"""Keys of other engines that mean nothing here: how many tokens are guessed, and whether, is decided step by step."""


def read_speculative_config(text: str) -> dict[str, Any]:
    """The settings that it stands for. Raises ConfigError naming what is wrong in it."""
    try:
        given = read_settings_json(text)
    except json.JSONDecodeError as error:
        raise _wrong(f"is not JSON ({error}): {shown(text)}") from None
    except ValueError as error:
        raise _wrong(f"cannot be read: {error}") from None
    if not isinstance(given, dict):
        raise _wrong(f"must be a JSON object, got {shown(text)}")
    given = {name: value for name, value in given.items() if value is not None or name not in (*_NAMES, *_ELSEWHERE)}
    for name, value in given.items():
        if name in _ELSEWHERE:
            raise _wrong(f"{name} is a setting of other engines and has no effect here: leave it out")
        if name not in _NAMES:
            raise _wrong(f"has no {shown(name)}; known are {', '.join(_NAMES)}")
        if not isinstance(value, _KINDS[name]) or isinstance(value, bool):
            raise _wrong(f"{name} must be {_KINDS[name].__name__}, got {shown(value)}")
    if given.get("method", "none") not in METHODS:
        raise _wrong(f"method must be one of {', '.join(METHODS)}, got {shown(given['method'])}")
    found = {_NAMES[name]: value for name, value in given.items()}
    if "speculative_model" in found:
        found.setdefault("speculate", "draft_model")
    return found


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"speculative_config {what}", field="speculative_config")

"""speculative_config, as other engines' users write it: one JSON object for what are settings of their own here."""

from __future__ import annotations

import json
from typing import Any

from headrace.core.errors import ConfigError, shown

_NAMES = {"method": "speculate", "num_speculative_tokens": "num_speculative_tokens", "model": "speculative_model"}


def read_speculative_config(text: str) -> dict[str, Any]:
    """The settings that it stands for. Raises ConfigError naming what is wrong in it."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise _wrong(f"is not JSON ({error}): {shown(text)}") from None
    if not isinstance(given, dict):
        raise _wrong(f"must be a JSON object, got {shown(text)}")
    for name in given:
        if name not in _NAMES:
            raise _wrong(f"has no {shown(name)}; known are {', '.join(_NAMES)}")
    found = {_NAMES[name]: value for name, value in given.items()}
    for name, kind in (("method", str), ("num_speculative_tokens", int), ("model", str)):
        if name in given and (not isinstance(given[name], kind) or isinstance(given[name], bool)):
            raise _wrong(f"{name} must be {kind.__name__}, got {shown(given[name])}")
    if "speculative_model" in found:
        found.setdefault("speculate", "draft_model")
    return found


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"speculative_config {what}", field="speculative_config")

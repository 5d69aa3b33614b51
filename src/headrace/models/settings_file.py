"""JSON settings that come with a model, read with care: they are data from strangers."""

import json
from pathlib import Path
from typing import Any

from headrace.core.errors import ModelError

_MAX_BYTES = 16 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model's file. Raises ModelError if it is missing, too large or not an object."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path}: larger than {_MAX_BYTES} bytes, which no settings file is")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return value

"""JSON that an operator writes: a key given twice in one object is refused, where JSON's readers keep the later."""

import json
from collections import Counter
from typing import Any

from headrace.core.errors import shown


def read_settings_json(text: str | bytes) -> Any:
    """Raises ValueError saying what is wrong."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{shown(name)} is given {'twice' if count == 2 else f'{count} times'}: give it once")
    return dict(pairs)

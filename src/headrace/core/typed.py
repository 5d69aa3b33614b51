"""Values by annotated types: of settings, and of what people give to the functions that they call."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np

from headrace.core.errors import ConfigError, shown


def typed(name: str, value: Any, kind: Any, written: str) -> Any:
    """The value as one of this type: an integer may stand for a float, and numpy's for Python's. written: the type as
    people read it. Raises ConfigError."""
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        return msgspec.convert(os.fspath(plain) if isinstance(plain, os.PathLike) else plain, kind)
    except msgspec.ValidationError:
        allowed = written.replace(" | None", "").replace(" | ", " or ")
        raise ConfigError(f"{name} must be {allowed}, got {shown(value)}", field=name) from None

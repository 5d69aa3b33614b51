"""Values by annotated types: of settings, and of what people give to the functions that they call."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args

import msgspec
import numpy as np

from headrace.core.errors import ConfigError, shown


def typed(name: str, value: Any, kind: Any) -> Any:
    """The value as one of this type: an integer may stand for a float, numpy's numbers for Python's, and a str for a
    path. Raises ConfigError."""
    kinds = [kind] if not isinstance(kind, UnionType) else get_args(kind)
    plain = value.item() if isinstance(value, np.generic) else value
    if Path in kinds and isinstance(plain, Path):
        return plain
    try:
        return msgspec.convert(plain, Union[tuple(one for one in kinds if one is not Path)])  # noqa: UP007
    except msgspec.ValidationError:
        allowed = " or ".join(
            inspect.formatannotation(one).rpartition("abc.")[2] for one in kinds if one is not NoneType
        )
        raise ConfigError(f"{name} must be {allowed}, got {shown(value)}", field=name) from None

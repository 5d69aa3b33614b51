"""Values by annotated types: of settings, and of what people give to the functions that they call."""

from __future__ import annotations

import inspect
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args

import msgspec

from headrace.core.errors import ConfigError, shown


def typed(name: str, value: Any, kind: Any) -> Any:
    """The value as one of this type: an integer may stand for a float, and numpy's numbers for Python's. Raises
    ConfigError."""
    kinds = [kind] if not isinstance(kind, UnionType) else get_args(kind)
    plain = value
    if type(value) not in (bool, int, float) and isinstance(value, Real):
        plain = int(value) if isinstance(value, Integral) else float(value)
    if Path in kinds and isinstance(value, Path):
        return value
    try:
        return msgspec.convert(plain, Union[tuple(one for one in kinds if one is not Path)])  # noqa: UP007
    except msgspec.ValidationError:
        allowed = " or ".join(
            inspect.formatannotation(one).rpartition("abc.")[2] for one in kinds if one is not NoneType
        )
        raise ConfigError(f"{name} must be {allowed}, got {shown(value)}", field=name) from None

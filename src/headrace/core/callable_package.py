"""Rooms that are verbs: `headrace.plan(...)` and `headrace.plan.search` are the function and the package of one name.
Importing a package binds its name in its parent, so the function cannot lie there beside it: the package itself is
called, and loads what it needs when that happens.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, get_type_hints

from headrace.core.typed import typed

_Asked = ParamSpec("_Asked")
_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


class CallablePackage(ModuleType):
    """Calls the function of its own name in its module `api`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function(self)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function(self))


def make_callable(package: str) -> None:
    """Let a package that is being imported be called."""
    sys.modules[package].__class__ = CallablePackage


def answers(
    ask: Callable[_Asked, _Question], answer: Callable[[_Question], _Answer], name: str
) -> Callable[_Asked, _Answer]:
    """A function of that name which takes what ask takes, by ConfigError refuses values of other types than ask says,
    and says what answer says of what was asked."""

    @functools.wraps(ask, updated=())
    def answered(*args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer:
        given = inspect.signature(ask).bind(*args, **kwargs)
        kinds = get_type_hints(ask)
        for field, value in given.arguments.items():
            given.arguments[field] = typed(field, value, kinds[field])
        return answer(ask(*given.args, **given.kwargs))

    answered.__name__ = answered.__qualname__ = name
    answered.__doc__ = answer.__doc__
    return answered


def _function(package: ModuleType) -> Any:
    return getattr(importlib.import_module(f"{package.__name__}.api"), package.__name__.rpartition(".")[2])

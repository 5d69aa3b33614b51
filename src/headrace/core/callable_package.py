"""Rooms that are verbs: `headrace.plan(...)` and `headrace.plan.search` are the function and the package of one name.
Importing a package binds its name in its parent, so the function cannot lie there beside it: the package itself is
called, and loads what it needs when that happens.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


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


def _function(package: ModuleType) -> Any:
    return getattr(importlib.import_module(f"{package.__name__}.api"), package.__name__.rpartition(".")[2])

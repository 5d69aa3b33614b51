"""The planner in Python: the same keywords as `headrace plan` has flags, and the same figures in what comes back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace.plan.ablation import ablate as _ablate
from headrace.plan.asking import ask
from headrace.plan.question import Question
from headrace.plan.search import plan as _plan

_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def _answers(
    ask: Callable[_Asked, Question], answer: Callable[[Question], _Answer], name: str
) -> Callable[_Asked, _Answer]:
    @functools.wraps(ask)
    def answered(*args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer:
        return answer(ask(*args, **kwargs))

    answered.__name__ = answered.__qualname__ = name
    answered.__doc__ = answer.__doc__
    return answered


plan = _answers(ask, _plan, "plan")
ablate = _answers(ask, _ablate, "ablate")

"""plan: the least cost that keeps a question's times: an analytic search over ways to serve the model, then the best
few simulated."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.errors import ConfigError
from headrace.plan.answer import Plan
from headrace.plan.question import Question

Progress = Callable[[str], None]


def plan(question: Question, *, simulate: bool = True, progress: Progress = lambda line: None) -> Plan:
    """The cheapest way to serve the question's load. ConfigError that says which limit is broken, and the nearest
    answer that is not, where there is none."""
    raise ConfigError("there is no search yet")

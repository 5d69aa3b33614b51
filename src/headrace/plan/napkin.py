"""Examples: calculations that others did on a napkin, line by line beside the right figure."""

from __future__ import annotations

from headrace.core.errors import ConfigError, did_you_mean
from headrace.plan.answer import Figures

EXAMPLES: dict[str, str] = {}
"""By name, what each is about."""


def example(name: str) -> Figures:
    """The calculation of that name. ConfigError for one that is not known."""
    hint = did_you_mean(name, EXAMPLES, f"there are {', '.join(EXAMPLES) or 'none'}")
    raise ConfigError(f"no example {name!r}; {hint}", field="example")

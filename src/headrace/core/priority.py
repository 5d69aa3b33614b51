"""Names of priority classes. A priority is a number, and the lower one goes first, as in vLLM; 0 is what a request has
that says nothing. Names and OpenAI's service tiers stand for numbers, so that all doors mean the same.
"""

from types import MappingProxyType

DEFAULT_PRIORITY = 0
PRIORITY_LIMIT = 2**31
"""Priorities lie in [-PRIORITY_LIMIT, PRIORITY_LIMIT)."""

PRIORITY_NAMES = MappingProxyType({"high": -1, "normal": 0, "batch": 1})
SERVICE_TIER_PRIORITIES = MappingProxyType(
    {
        "auto": PRIORITY_NAMES["normal"],
        "default": PRIORITY_NAMES["normal"],
        "priority": PRIORITY_NAMES["high"],
        "scale": PRIORITY_NAMES["high"],
        "flex": PRIORITY_NAMES["batch"],
    }
)

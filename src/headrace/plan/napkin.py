"""Examples: calculations that others did on a napkin, line by line beside the right figure, and why they differ.
`headrace plan --example NAME`.
"""

from collections.abc import Callable

from headrace.core.errors import ConfigError, did_you_mean
from headrace.plan.claim import Claim
from headrace.plan.million_qps import SOURCE, Node, fleet_claims
from headrace.plan.technique_claims import technique_claims


def million_qps() -> list[Claim]:
    """How many GPUs serve 1.4 million requests a second?"""
    node = Node.of(SOURCE)
    return [*fleet_claims(node), *technique_claims(node)]


EXAMPLES: dict[str, Callable[[], list[Claim]]] = {"million-qps": million_qps}


def example(name: str) -> list[Claim]:
    """The calculation of that name. ConfigError for one that is not known."""
    if name not in EXAMPLES:
        hint = did_you_mean(name, EXAMPLES, f"there is {', '.join(EXAMPLES)}")
        raise ConfigError(f"no example {name!r}; {hint}", field="example")
    return EXAMPLES[name]()

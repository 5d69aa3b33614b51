"""Demand: one request as a workload asks for it, by when it comes and what its prompt is made of. Prompts are named
parts, not tokens: where two prompts begin with the same parts, a prefix cache can serve the second from the first.
"""

from dataclasses import dataclass

from headrace.core.priority import DEFAULT_PRIORITY

Part = tuple[int, int]
"""(name of a content, how many of its tokens, from its first on). Equal names are equal tokens."""

ANSWER = -1
"""Name of what a model generated: in a prompt, an earlier answer of the same conversation."""


@dataclass(frozen=True, slots=True)
class Demand:
    """at: seconds after the start, or, where follows names an earlier request by its place in the workload, after that
    one's end (somebody reads and thinks). output_len: tokens that are generated, at least 1."""

    at: float
    prompt: tuple[Part, ...]
    output_len: int
    follows: int | None = None
    tenant: str = ""
    priority: int = DEFAULT_PRIORITY

    @property
    def input_len(self) -> int:
        return sum(length for _, length in self.prompt)

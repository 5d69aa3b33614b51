"""Claim: a figure that somebody published, beside the right one and why they differ."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["right", "wrong", "unclear"]


@dataclass(frozen=True, slots=True)
class Claim:
    """The source's figure and ours, either None where there is none to compare. unclear: it can be read in
    several ways, or not recomputed from what was published."""

    claim: str
    theirs: float | None
    right: float | None
    unit: str
    why: str
    verdict: Verdict = "wrong"

    @property
    def factor(self) -> float | None:
        """Theirs over right."""
        return self.theirs / self.right if self.theirs is not None and self.right else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "factor": self.factor}

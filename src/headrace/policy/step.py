"""What the scheduler remembers of a step under way until it has finished, and what it counts."""

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from headrace.core.batch import Batch, BoolArray, IntArray
from headrace.policy.latency import StepWork
from headrace.policy.steady import Steady


class Step(msgspec.Struct, eq=False):
    """A batch under way. Row j < len(sampled) names token `index[j]` of slot `sampled[j]`; the rows after them
    score prompts: (slot, rows) in order. ends: first positions that its entries leave uncomputed. serials: whose
    the slots of its entries were. departures: how many requests had left their slot when it was begun; if none has
    since, all serials still hold. drafted: draft tokens of each entry, whose ends count them all until they are proven.
    steady: set if it was one more of the same; then `final` says whether some request takes its last token. work: what
    it computes, where that is known without looking."""

    batch: Batch
    ends: IntArray
    serials: IntArray
    sampled: IntArray
    index: IntArray
    scored: list[tuple[int, int]]
    departures: int
    drafted: IntArray | None = None
    steady: Steady | None = None
    final: bool = False
    work: StepWork | None = None

    def alive(self, serial: IntArray) -> BoolArray:
        """Which entries still belong to the request that they were made for; serial: of all slots, as it is now."""
        still: BoolArray = serial.take(self.batch.slots) == self.serials
        return still


@dataclass(slots=True)
class Counters:
    """Totals since the start. host_tokens and disk_tokens are those of cached_tokens that came from there. finished is
    keyed by finish reason."""

    preemptions: int = 0
    swaps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    generated_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)

"""Who gives way. When running requests need more blocks than there are, the one with the least claim; for a request
that waits, running ones of strictly lower classes, the lowest class first and in it the latest arrival, so that the
earliest always moves on. What gave way has its tokens computed again later, as far as they are no longer cached.

Against thrash: a request that was preempted so many times is immune, and one that has come back stays until it has
gained some tokens, so that no work is done only to be lost.
"""

from dataclasses import dataclass

from headrace.core.batch import EMPTY, IntArray
from headrace.policy.latency import LatencyModel, StepWork
from headrace.policy.slots import Slots

COPIED_PER_S = 2e9
"""Bytes a second between device and host, as the slower of machines has it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """most_preemptions: after so many a request is immune against those that wait, and gives way last where blocks
    run out. shortest_stay: tokens that a request which has come back gains before it gives way again."""

    most_preemptions: int = 3
    shortest_stay: int = 16


@dataclass(frozen=True, slots=True)
class Swap:
    """Whether what a preempted request has computed is brought to the host at once, to come back from there, or left to
    the prefix cache and computed again as far as it is lost by then. bytes_per_position: over all KV groups."""

    latency: LatencyModel
    bytes_per_position: float

    def pays(self, positions: int) -> bool:
        """Whether copying so many positions down and up takes less time than computing them."""
        again = self.latency.predict(StepWork(positions, 1, 0, positions * positions / 2))
        return 2 * positions * self.bytes_per_position / COPIED_PER_S < again


def least_claim(slots: Slots, patience: Patience) -> int:
    """The slot that gives way when blocks run out. At least one is taken."""
    return int(slots.by_claim(patience.most_preemptions)[-1])


def yielding(slots: Slots, priority: int, patience: Patience) -> IntArray:
    """The slots that give way to a waiting request of this class, int32 [n], the first to do so first."""
    if slots.worst_priority <= priority:
        return EMPTY
    claims = slots.by_claim(patience.most_preemptions)[::-1]
    lower = slots.priority[claims] > priority
    lower &= slots.preemptions[claims] < patience.most_preemptions
    gained = slots.done[claims] + 1 - slots.start[claims]
    lower &= (slots.preemptions[claims] == 0) | (gained >= patience.shortest_stay)
    return claims[lower]

"""Move: one request's change of state, as the scheduler made it. Admission and the log of requests follow requests by
these, so that the scheduler knows of neither.
"""

import msgspec

from headrace.core.request import FinishReason, RequestState
from headrace.policy.sequence import Sequence


class Move(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What the sequence became. by: who needed its place, if it was preempted for another; swapped: what it had
    computed was moved aside rather than given up. reason: why it ended."""

    sequence: Sequence
    state: RequestState
    by: Sequence | None = None
    swapped: bool = False
    reason: FinishReason | None = None

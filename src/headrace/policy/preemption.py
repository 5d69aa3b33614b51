"""Whose place is taken when blocks run out: the latest arrival's, so that the earliest always moves on. It gives
up its blocks and later computes its tokens again, as far as they are no longer cached.
"""

from __future__ import annotations

from headrace.core.batch import IntArray


def victim(order: IntArray) -> int:
    """The slot to preempt. order: running slots in order of arrival, at least two."""
    return int(order[-1])

"""How a step's tokens are shared out: requests that need one token (decodes, and last tokens of a prefill) first,
then longer ones in order of arrival, the last of them cut to a chunk. The cut never changes what is generated.
"""

from __future__ import annotations

import numpy as np

from headrace.core.batch import IntArray


def share(pending: IntArray, budget: int) -> IntArray:
    """Tokens to compute for each request, int32 [n]. pending: tokens it could compute, in order of arrival;
    budget: most tokens in all."""
    if int(pending.sum()) <= budget:
        return pending
    single = pending == 1
    counts = _fill(np.where(single, pending, 0), budget)
    return counts + _fill(np.where(single, 0, pending), budget - int(counts.sum()))


def _fill(wanted: IntArray, budget: int) -> IntArray:
    before = np.cumsum(wanted) - wanted
    given: IntArray = np.clip(budget - before, 0, wanted).astype(np.int32)
    return given

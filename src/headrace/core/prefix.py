"""How far two runs of tokens say the same."""

import numpy as np

from headrace.core.batch import IntArray


def common_length(one: IntArray, other: IntArray) -> int:
    """Length of what both begin with."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length

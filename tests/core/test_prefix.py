"""common_length: where two runs of tokens part."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.prefix import common_length

TOKENS = st.lists(st.integers(0, 2), max_size=6)


@given(TOKENS, TOKENS)
def test_it_counts_equal_tokens_from_the_start(one, other):
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert common_length(np.array(one, np.int32), np.array(other, np.int32)) == expected

"""The prefix cache finds exactly what was stored under exactly these tokens."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.policy.prefix_cache import ABSENT, PrefixCache


def tokens(*values):
    return np.array(values, np.int32)


def store(cache, salt, values, blocks, size=2):
    node = cache.root(salt)
    for i, block in enumerate(blocks):
        node = cache.extend(node, tokens(*values[i * size : i * size + size]).tobytes())
        for group, one in enumerate(block if isinstance(block, tuple) else (block,)):
            if one != ABSENT:
                cache.store(node, group, one)
    return node


def found(cache, salt, values, most=99):
    return [node.blocks[0] for node in cache.lookup(salt, tokens(*values), most)]


def test_a_prefix_is_found_block_by_block():
    cache = PrefixCache(2, (None,))
    store(cache, "", [1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert found(cache, "", [1, 2, 3, 4, 5, 6]) == [7, 8, 9]
    assert found(cache, "", [1, 2, 3, 4, 5]) == [7, 8]
    assert found(cache, "", [1, 2, 3, 9, 5, 6]) == [7]
    assert found(cache, "", [3, 4]) == []
    assert found(cache, "", [1, 2, 3, 4, 5, 6], most=5) == [7, 8]
    assert found(cache, "salt", [1, 2]) == []


def test_what_is_forgotten_cuts_the_prefix_until_it_is_stored_again():
    cache = PrefixCache(2, (None,))
    store(cache, "", [1, 2, 3, 4, 5, 6], [7, 8, 9])
    cache.forget(0, 8)
    assert found(cache, "", [1, 2, 3, 4, 5, 6]) == [7]
    store(cache, "", [1, 2, 3, 4], [7, 5])
    assert found(cache, "", [1, 2, 3, 4, 5, 6]) == [7, 5, 9]


def test_a_window_needs_only_its_own_blocks():
    cache = PrefixCache(2, (None, 3))
    store(cache, "", [1, 2, 3, 4, 5, 6], [(7, ABSENT), (8, ABSENT), (9, 1)])
    # Position 6 sees positions 4 and 5 of the window's group, which are block 2.
    assert found(cache, "", [1, 2, 3, 4, 5, 6]) == [7, 8, 9]
    # Position 4 would see positions 2 and 3, which are gone.
    assert found(cache, "", [1, 2, 3, 4]) == []
    cache.forget(1, 1)
    assert found(cache, "", [1, 2, 3, 4, 5, 6]) == []


def test_nothing_is_left_of_what_is_forgotten():
    cache = PrefixCache(2, (None,))
    tip = cache.enter(store(cache, "x", [1, 2, 3, 4], [7, 8]))
    cache.forget(0, 8)
    cache.forget(0, 7)
    assert len(cache) == 0
    # The user's chain still hangs together.
    cache.store(cache.extend(tip, tokens(5, 6).tobytes()), 0, 3)
    cache.leave(tip)
    cache.forget(0, 3)
    assert cache._roots == {}


values = st.lists(st.integers(0, 1), min_size=2, max_size=8)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(values, max_size=12), st.sets(st.integers(0, 40)), values)
def test_it_finds_the_longest_stored_prefix(stored, forgotten, asked):
    cache, by_prefix = PrefixCache(2, (None,)), {}
    for one in stored:
        blocks = []
        for end in range(2, len(one) + 1, 2):
            blocks.append(by_prefix.setdefault(tuple(one[:end]), len(by_prefix)))
        store(cache, "", one, blocks)
    for block in forgotten & set(by_prefix.values()):
        cache.forget(0, block)
    expected = []
    for end in range(2, len(asked) + 1, 2):
        block = by_prefix.get(tuple(asked[:end]))
        if block is None or block in forgotten:
            break
        expected.append(block)
    assert found(cache, "", asked) == expected

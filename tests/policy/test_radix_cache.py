"""The radix tree finds exactly what was entered under exactly these tokens, to the token."""

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from headrace.policy.block_pool import ABSENT
from headrace.policy.radix_cache import RadixCache

SIZE = 2


def data(values):
    return np.array(values, np.int32).tobytes()


def cache_of(groups=1, blocks=200, most_lost=0):
    return RadixCache(SIZE, (blocks,) * groups, most_lost)


def store(cache, salt, values, blocks):
    """Enter values under these blocks, one per group each; what does not fill a block enters as a part."""
    rows = np.array([block if isinstance(block, tuple) else (block,) for block in blocks], np.int32).T
    root = cache.root(salt)
    cache.enter(root, 0)
    full = len(values) // SIZE
    done = cache.insert(root, data(values[: full * SIZE]), np.ascontiguousarray(rows[:, :full]), 0)
    if len(values) % SIZE:
        cache.insert_part(done.tip, data(values[full * SIZE :]), rows[:, full:])
    cache.leave(done.tip, 0)
    return done


def found(cache, salt, values):
    """(blocks in the first group, block that has the tokens after them, tokens found)."""
    match = cache.walk(salt, data(values))
    blocks = [int(b) for node, count in match.path for b in node.blocks[0, :count]]
    part = None if match.tail is None else int(match.tail.blocks[0, match.tail_index])
    return blocks, part, match.blocks * SIZE + match.tail_tokens


def test_a_prefix_is_found_to_the_token():
    cache = cache_of()
    store(cache, "", [1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert found(cache, "", [1, 2, 3, 4, 5, 6]) == ([7, 8, 9], None, 6)
    assert found(cache, "", [1, 2, 3, 4, 5]) == ([7, 8], 9, 5)
    assert found(cache, "", [1, 2, 3, 9, 5, 6]) == ([7], 8, 3)
    assert found(cache, "", [3, 4]) == ([], None, 0)
    assert found(cache, "salt", [1, 2]) == ([], None, 0)


def test_a_run_is_split_where_prompts_part():
    cache = cache_of()
    store(cache, "", [1, 2, 3, 4, 5, 6], [7, 8, 9])
    store(cache, "", [1, 2, 3, 4, 7, 7], [7, 8, 10])
    assert found(cache, "", [1, 2, 3, 4, 5, 6]) == ([7, 8, 9], None, 6)
    assert found(cache, "", [1, 2, 3, 4, 7, 7]) == ([7, 8, 10], None, 6)
    assert found(cache, "", [1, 2, 3, 4, 7, 1]) == ([7, 8], 10, 5)
    assert cache.next_tokens(cache.walk("", data([1, 2, 3, 4, 8, 8]))) == (5, 7)


def test_what_equals_a_known_block_is_named():
    cache = cache_of()
    store(cache, "", [1, 2, 3, 4], [7, 8])
    done = store(cache, "", [1, 2, 3, 4, 5, 6], [17, 18, 19])
    assert [(g, index.tolist(), blocks.tolist()) for g, index, blocks in done.known] == [(0, [0, 1], [7, 8])]
    assert [blocks.tolist() for _, blocks in done.stored] == [[19]]


def test_a_part_gives_way_to_what_goes_on_from_it():
    cache = cache_of()
    store(cache, "", [1, 2, 3], [7, 8])
    assert found(cache, "", [1, 2, 3, 4]) == ([7], 8, 3)
    done = store(cache, "", [1, 2, 3, 4], [7, 9])
    assert [blocks.tolist() for _, blocks in done.dropped] == [[8]]
    assert found(cache, "", [1, 2, 3, 4]) == ([7, 9], None, 4)
    assert len(cache) == 2
    # And what is known as part of more is not entered.
    assert store(cache, "", [1, 2, 3], [7, 6]).dropped == []
    assert len(cache) == 2


def test_what_is_evicted_stays_known_for_a_while_and_says_for_whom():
    cache = cache_of(most_lost=2)
    store(cache, "", [1, 2, 3, 4, 5, 6], [7, 8, 9])
    cache.forget(0, np.array([9, 8], np.int32), 3.0, "other")
    match = cache.walk("", data([1, 2, 3, 4, 5, 6]))
    assert match.path[0][0].blocks.tolist() == [[7, ABSENT, ABSENT]]
    assert match.path[0][0].lost == (3.0, "other")
    cache.forget(0, np.array([7], np.int32), 4.0, "another")
    assert cache.roots == {}


def test_nothing_is_left_of_what_is_forgotten():
    cache = cache_of()
    store(cache, "x", [1, 2, 3, 4, 5], [7, 8, 9])
    tip = cache.tip(cache.walk("x", data([1, 2, 3, 4])), 2)
    cache.enter(tip, 5)
    cache.forget(0, np.array([9, 8, 7], np.int32), 0.0, "")
    assert len(cache) == 0
    # The chain of slot 5 still hangs together.
    done = cache.insert(tip, data([5, 6]), np.array([[3]], np.int32), 5)
    cache.leave(done.tip, 5)
    assert found(cache, "x", [1, 2, 3, 4, 5, 6]) == ([ABSENT, ABSENT, 3], None, 6)
    cache.forget(0, np.array([3], np.int32), 0.0, "")
    assert cache.roots == {}


values = st.lists(st.integers(0, 1), min_size=1, max_size=9)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "x"]), values), max_size=12), st.data(), values)
def test_it_finds_the_longest_prefix_of_what_is_there(stored, draw, asked):
    """Against the simplest model: for each block, which tokens up to its end it holds."""
    cache, held, fresh = cache_of(most_lost=draw.draw(st.sampled_from([0, 4, 100]))), {}, iter(range(200))
    for salt, one in stored:
        ends = [*range(SIZE, len(one) + 1, SIZE), *([len(one)] if len(one) % SIZE else [])]
        blocks = [next(fresh) for _ in ends]
        done = store(cache, salt, one, blocks)
        gone = {int(b) for _, dropped in done.dropped for b in dropped}
        held = {block: key for block, key in held.items() if block not in gone}
        for block, end in zip(blocks, ends, strict=True):
            if cache._owners[0][block] is not None:
                assert (salt, tuple(one[:end])) not in held.values(), "kept once"
                held[block] = salt, tuple(one[:end])
        if held and draw.draw(st.booleans()):
            # As eviction does, from the ends of prefixes.
            victim = max(held, key=lambda block: len(held[block][1]))
            cache.forget(0, np.array([victim], np.int32), 0.0, "")
            del held[victim]
            event("evicted")
    assert len(cache) == len(held)
    by_tokens = dict(zip(held.values(), held, strict=True))
    for salt in ("", "x"):
        full = 0
        while full + SIZE <= len(asked) and (salt, tuple(asked[: full + SIZE])) in by_tokens:
            full += SIZE
        longest = full + max(
            (
                _alike(key[full:], asked[full:])
                for there, key in held.values()
                if there == salt and list(key[:full]) == asked[:full] and full < len(key) <= full + SIZE
            ),
            default=0,
        )
        blocks, part, tokens = found(cache, salt, asked)
        present = blocks.index(ABSENT) if ABSENT in blocks else len(blocks)
        assert [by_tokens[salt, tuple(asked[: SIZE * (i + 1)])] for i in range(full // SIZE)] == blocks[:present]
        if present == len(blocks) and part != ABSENT:
            assert tokens == longest
            if part is not None:
                assert held[part][1][:longest] == tuple(asked[:longest])


def _alike(key, asked):
    same = 0
    for a, b in zip(key, asked, strict=False):
        if a != b:
            break
        same += 1
    return same

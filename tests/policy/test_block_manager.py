"""Tables, sharing and freeing, for full attention and windows."""

import numpy as np

from headrace.policy.block_manager import BlockManager


def manager(num_blocks=(10,), windows=(None,), *, slots=4, block_size=4, reach=4, caching=True):
    return BlockManager(
        num_slots=slots,
        max_model_len=64,
        block_size=block_size,
        num_blocks=num_blocks,
        windows=windows,
        reach=reach,
        caching=caching,
    )


def ints(*values):
    return np.array(values, np.int32)


def begin(blocks, slot, tokens, salt="", most=None):
    hit = blocks.lookup(salt, tokens, len(tokens) - 1 if most is None else most)
    blocks.admit(slot, salt, hit)
    assert blocks.grow(ints(slot), ints(len(tokens)))
    return hit.tokens


def table(blocks):
    """What a device knows after the edits so far: {(slot, group, index): (block, epoch)}."""
    edits = blocks.take_edits()
    columns = (edits.slot, edits.group, edits.index, edits.block, edits.epoch)
    assert all(column.dtype == np.int32 for column in columns)
    return {(s, g, i): (b, e) for s, g, i, b, e in zip(*(c.tolist() for c in columns), strict=True)}


def test_growth_gives_blocks_and_writes_edits():
    blocks = manager()
    assert blocks.grow(ints(2, 0), ints(5, 4))
    assert table(blocks) == {(2, 0, 0): (0, 1), (2, 0, 1): (1, 1), (0, 0, 0): (2, 1)}
    assert blocks.grow(ints(2, 0), ints(8, 5))
    assert table(blocks) == {(0, 0, 1): (3, 1)}
    assert blocks.blocks_held == 4
    assert table(blocks) == {}


def test_growth_is_all_or_nothing():
    blocks = manager((3, 2), (None, None))
    assert not blocks.grow(ints(0, 1), ints(8, 4))
    assert blocks.blocks_held == 0 and table(blocks) == {}
    assert blocks.grow(ints(0, 1), ints(4, 4))


def test_a_reused_block_has_a_new_epoch():
    blocks = manager((1,), caching=False)
    assert blocks.grow(ints(0), ints(4))
    blocks.release(0)
    assert blocks.grow(ints(1), ints(4))
    assert table(blocks)[1, 0, 0] == (0, 2)


def test_a_prefix_is_shared_while_held_and_after():
    blocks = manager()
    tokens = np.arange(10, dtype=np.int32)
    assert begin(blocks, 0, tokens) == 0
    blocks.remember(0, tokens)
    own = table(blocks)
    assert begin(blocks, 1, tokens) == 8
    shared = table(blocks)
    assert [shared[1, 0, i][0] for i in (0, 1)] == [own[0, 0, i][0] for i in (0, 1)]
    assert blocks.blocks_held == 4
    blocks.release(0)
    blocks.release(1)
    assert (blocks.blocks_held, blocks.blocks_idle) == (0, 2)
    assert begin(blocks, 2, tokens) == 8
    assert begin(blocks, 3, tokens, salt="other") == 0


def test_equal_blocks_are_kept_once():
    blocks = manager()
    tokens = np.arange(8, dtype=np.int32)
    begin(blocks, 0, tokens)
    begin(blocks, 1, tokens)
    assert blocks.blocks_held == 4
    table(blocks)
    blocks.remember(0, tokens)
    blocks.remember(1, tokens)
    assert blocks.blocks_held == 2
    assert table(blocks) == {(1, 0, 0): (0, 1), (1, 0, 1): (1, 1)}
    blocks.release(0)
    assert blocks.blocks_held == 2
    blocks.release(1)
    assert (blocks.blocks_held, blocks.blocks_idle) == (0, 2)


def test_cached_blocks_are_evicted_only_when_needed_and_from_the_end():
    blocks = manager((4,))
    tokens = np.arange(12, dtype=np.int32)
    begin(blocks, 0, tokens)
    blocks.remember(0, tokens)
    blocks.release(0)
    assert blocks.blocks_idle == 3
    assert blocks.grow(ints(1), ints(4))
    assert blocks.blocks_idle == 3
    assert blocks.grow(ints(1), ints(8))
    assert blocks.lookup("", tokens, 12).tokens == 8
    assert blocks.grow(ints(1), ints(16))
    assert blocks.lookup("", tokens, 12).tokens == 0


def test_fits_counts_idle_blocks_of_the_hit_once():
    blocks = manager((3,))
    tokens = np.arange(8, dtype=np.int32)
    begin(blocks, 0, tokens)
    blocks.remember(0, tokens)
    blocks.release(0)
    hit = blocks.lookup("", tokens, 8)
    assert blocks.fits(hit, 12, reserve=0)
    assert not blocks.fits(hit, 12, reserve=1)
    assert not blocks.fits(hit, 13, reserve=0)


def test_blocks_behind_a_window_are_freed():
    blocks = manager((10, 10), (None, 6), reach=4)
    assert blocks.grow(ints(0), ints(16))
    blocks.free_behind(ints(0), ints(8))
    # Position 8 sees positions 3 to 8 of the second group: nothing is wholly behind.
    assert blocks.blocks_held == 8
    blocks.free_behind(ints(0), ints(9))
    assert blocks.blocks_held == 7
    blocks.free_behind(ints(0), ints(16))
    assert blocks.blocks_held == 6
    blocks.release(0)
    assert blocks.blocks_held == 0


def test_what_can_never_fit():
    assert manager((10,)).most_positions() == 40
    assert manager((10, 4), (None, 5), reach=4).most_positions() == 40
    assert manager((4,), (5,), reach=4).most_positions() is None


def test_a_window_pool_must_hold_a_window_and_what_is_under_way():
    # 4 + 8 positions touch at most 4 blocks of 4.
    assert manager((16, 4), (None, 5), reach=8).most_positions() == 64
    assert manager((16, 3), (None, 5), reach=8).most_positions() == 12

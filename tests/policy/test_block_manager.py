"""Tables, sharing and freeing, for full attention and windows."""

import numpy as np

from headrace.core.request import CacheHint
from headrace.policy.block_manager import BlockManager
from headrace.policy.cache_report import CacheReport, Miss


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


def copies(blocks):
    made = blocks.take_copies()
    return list(zip(made.group.tolist(), made.source.tolist(), made.destination.tolist(), strict=True))


def end(blocks, slot, tokens, hint=None):
    blocks.remember(slot, tokens, ending=True)
    blocks.release(slot, hint)


def test_part_of_a_block_is_copied_and_the_original_kept():
    blocks = manager()
    tokens = np.arange(10, dtype=np.int32)
    begin(blocks, 0, tokens)
    end(blocks, 0, tokens)
    assert blocks.blocks_idle == 3
    other = np.array([*range(9), 30, 31], np.int32)
    assert begin(blocks, 1, other) == 9
    # Two blocks are shared; of the third, which held two tokens, the first is good.
    assert table(blocks)[1, 0, 2][0] == 3
    assert copies(blocks) == [(0, 2, 3)]
    assert copies(blocks) == []
    end(blocks, 1, other)
    assert blocks.lookup("", tokens, 10).tokens == 10
    assert blocks.lookup("", other, 11).tokens == 11


def test_a_hit_may_be_any_part_of_a_full_block():
    blocks = manager()
    tokens = np.arange(8, dtype=np.int32)
    begin(blocks, 0, tokens)
    blocks.remember(0, tokens)
    # While slot 0 still runs.
    assert [blocks.lookup("", tokens, most).tokens for most in range(9)] == list(range(9))


def test_a_window_must_see_the_part_and_what_comes_before_it():
    blocks = manager((10, 10), (None, 6), reach=4)
    tokens = np.arange(14, dtype=np.int32)
    begin(blocks, 0, tokens)
    blocks.free_behind(ints(0), ints(14))
    end(blocks, 0, tokens)
    # Position 14 sees positions 9 to 13: blocks 2 and 3 of the second group.
    assert blocks.lookup("", tokens, 14).tokens == 14
    hit = blocks.lookup("", np.array([*range(13), 50], np.int32), 13)
    assert hit.tokens == 13
    # Position 12 sees 7 to 11, and block 1 is gone.
    assert blocks.lookup("", tokens, 12).tokens == 0


def test_the_source_of_a_copy_may_be_the_block_that_is_taken():
    blocks = manager((2,))
    tokens = np.arange(7, dtype=np.int32)
    begin(blocks, 0, tokens)
    end(blocks, 0, tokens)
    other = np.array([0, 1, 2, 3, 4, 5, 40], np.int32)
    assert blocks.fits(blocks.lookup("", other, 6), 7, reserve=0)
    assert begin(blocks, 1, other) == 6
    assert copies(blocks) == [(0, 1, 1)]


def test_pinned_blocks_give_way_last_and_only_so_many_are():
    blocks = manager((8,))
    pinned, other = np.arange(8, dtype=np.int32), np.arange(50, 58, dtype=np.int32)
    begin(blocks, 0, pinned)
    end(blocks, 0, pinned, CacheHint(pin=10))
    begin(blocks, 0, other)
    end(blocks, 0, other)
    assert blocks.grow(ints(1), ints(24))
    # Six blocks were needed and four free: the later one's went, though it was used more recently.
    assert blocks.lookup("", pinned, 8).tokens == 8
    assert blocks.lookup("", other, 8).tokens == 0
    # When nothing else is left, they go as well.
    assert blocks.grow(ints(1), ints(32))
    assert blocks.lookup("", pinned, 8).tokens == 0


def test_a_pin_ends_by_itself_and_gives_way_to_one_that_lasts_longer():
    blocks = manager((8,))
    first, second, third = (np.arange(i, i + 8, dtype=np.int32) for i in (0, 20, 40))
    for tokens, pin in ((first, 5), (second, 50)):
        begin(blocks, 0, tokens)
        end(blocks, 0, tokens, CacheHint(pin=pin))
    begin(blocks, 0, third)
    end(blocks, 0, third)
    # A quarter of the pool may be pinned: two blocks, which are the second one's.
    assert blocks.grow(ints(1), ints(16))
    assert [blocks.lookup("", tokens, 8).tokens for tokens in (first, second, third)] == [0, 8, 8]
    blocks.release(1)
    blocks.clock(51)
    assert blocks.grow(ints(1), ints(24))
    # Its time is over at 50, which made it the most recently used.
    assert [blocks.lookup("", tokens, 8).tokens for tokens in (second, third)] == [8, 0]


def test_what_has_outlived_its_time_goes_first():
    blocks = manager((4,))
    first, second = np.arange(8, dtype=np.int32), np.arange(20, 28, dtype=np.int32)
    begin(blocks, 0, first)
    end(blocks, 0, first)
    begin(blocks, 0, second)
    end(blocks, 0, second, CacheHint(ttl_s=5))
    blocks.clock(4.9)
    blocks.clock(5)
    assert blocks.grow(ints(1), ints(8))
    assert [blocks.lookup("", tokens, 8).tokens for tokens in (first, second)] == [8, 0]


def test_a_use_makes_time_to_live_start_anew():
    blocks = manager((4,))
    first, second = np.arange(8, dtype=np.int32), np.arange(20, 28, dtype=np.int32)
    for tokens, hint in ((second, CacheHint(ttl_s=5)), (first, None), (second, None)):
        begin(blocks, 0, tokens)
        end(blocks, 0, tokens, hint)
    blocks.clock(6)
    assert blocks.grow(ints(1), ints(8))
    assert [blocks.lookup("", tokens, 8).tokens for tokens in (first, second)] == [0, 8]


def reported(blocks, tokens, salt="", most=None):
    most = len(tokens) - 1 if most is None else most
    return blocks.report(salt, tokens, most, blocks.lookup(salt, tokens, most))


def test_a_report_says_why_no_more_was_cached():
    blocks = manager((6,))
    assert reported(blocks, np.arange(6, dtype=np.int32)) == CacheReport(miss=Miss.NEW)
    tokens = np.arange(10, dtype=np.int32)
    begin(blocks, 0, tokens)
    end(blocks, 0, tokens)
    assert reported(blocks, tokens) == CacheReport(9, at=9, miss=Miss.NOTHING)
    assert reported(blocks, tokens, most=4) == CacheReport(4, at=4, miss=Miss.SCORED)
    longer = np.array([*tokens, 7, 7], np.int32)
    assert reported(blocks, longer) == CacheReport(10, at=10, miss=Miss.NEW)
    other = np.array([*range(6), 40, 41], np.int32)
    assert reported(blocks, other) == CacheReport(6, at=6, miss=Miss.DIVERGED, token=40, others=(6,))
    assert reported(blocks, tokens, salt="x") == CacheReport(miss=Miss.NAMESPACE)
    blocks.clock(12.5)
    blocks.admit(1, "", blocks.lookup("", ints(90), 0), "the other one")
    assert blocks.grow(ints(1), ints(20))
    lost = reported(blocks, tokens)
    assert lost == CacheReport(4, at=4, miss=Miss.EVICTED, evicted_at=12.5, evicted_for="the other one")
    assert reported(manager(caching=False), tokens) == CacheReport(miss=Miss.OFF)

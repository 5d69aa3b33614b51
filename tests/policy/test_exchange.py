"""Blocks of prompts that are computed by one engine for another: room is made, kept, and given back to the last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.block_manager import BlockManager
from headrace.policy.exchange import Exchange

SIZE, ROWS = 4, 3


def manager(num_blocks=(40,), windows=(None,)):
    blocks = BlockManager(
        num_slots=2 + ROWS,
        max_model_len=400,
        block_size=SIZE,
        num_blocks=num_blocks,
        windows=windows,
        reach=16,
        caching=True,
    )
    return blocks, Exchange(blocks, range(2, 2 + ROWS))


def prompt(length, start=0):
    return np.arange(start, start + length, dtype=np.int32)


def expect(exchange, name, tokens, running=0):
    return exchange.expect(name, "", tokens, running, [0] * len(exchange._blocks.pools))


def test_what_has_come_is_found_to_the_token_and_what_is_here_need_not_come():
    blocks, exchange = manager()
    assert expect(exchange, "a", prompt(22)) == 0
    assert blocks.lookup("", prompt(22), 22).tokens == 0
    assert exchange.num_coming == 1 and blocks.blocks_held == 6
    exchange.arrived("a")
    assert exchange.num_coming == 0 and blocks.blocks_held == 6
    assert blocks.lookup("", prompt(30), 30).tokens == 22
    exchange.let_go("a")
    assert blocks.blocks_held == 0 and blocks.lookup("", prompt(30), 30).tokens == 22
    # Another that begins alike shares the whole blocks, and has the part of one copied.
    assert expect(exchange, "b", prompt(40)) == 22
    assert blocks.blocks_held == 10


def test_one_that_will_not_come_leaves_nothing():
    blocks, exchange = manager()
    expect(exchange, "a", prompt(22))
    exchange.let_go("a")
    assert (blocks.blocks_held, blocks.blocks_idle, blocks.set_aside, blocks.lent) == (0, 0, 0, 0)
    exchange.let_go("a")
    assert blocks.lent == 0


def test_room_is_refused_where_running_requests_could_not_go_on():
    _, exchange = manager((10,))
    assert expect(exchange, "a", prompt(36), running=1) is None
    # Nine blocks, and one into which its request will write.
    assert expect(exchange, "a", prompt(36)) == 0
    _, exchange = manager((20,))
    assert expect(exchange, "a", prompt(36)) == 0
    assert expect(exchange, "b", prompt(36, 100), running=1) is None
    # As many prompts may be on their way at once as there are rows.
    _, exchange = manager((100,))
    assert [expect(exchange, str(i), prompt(4, 10 * i)) for i in range(ROWS + 1)] == [0] * ROWS + [None]


def test_what_is_kept_is_not_evicted_until_it_is_let_go():
    blocks, exchange = manager((8,))
    for name in ("a", "b"):
        expect(exchange, name, prompt(14, ord(name)))
        exchange.arrived(name)
        exchange.let_go(name)
    exchange.keep("a", "", prompt(14, ord("a")))
    assert blocks.blocks_held == 3
    assert expect(exchange, "c", prompt(20, 300)) is None
    assert expect(exchange, "c", prompt(12, 300)) == 0
    assert blocks.lookup("", prompt(14, ord("a")), 14).tokens >= 12
    exchange.let_go("a")
    assert blocks.blocks_held == 3 and blocks.lent == 1


def test_behind_a_window_nothing_is_held():
    blocks, exchange = manager((40, 8), (None, 8))
    exchange_tokens = prompt(100)
    assert expect(exchange, "a", exchange_tokens) == 0
    assert [pool.num_held for pool in blocks.pools] == [25, 2]
    exchange.arrived("a")
    assert blocks.lookup("", exchange_tokens, 100).tokens == 100
    exchange.let_go("a")
    exchange.keep("a", "", exchange_tokens)
    assert [pool.num_held for pool in blocks.pools] == [25, 2]
    exchange.let_go("a")
    assert blocks.blocks_held == 0


@given(st.lists(st.tuples(st.sampled_from("enak"), st.integers(0, 5), st.integers(1, 60)), max_size=40), st.booleans())
def test_every_block_comes_back(moves, windowed):
    blocks, exchange = manager((24, 24), (None, 12 if windowed else None))
    coming, there = set(), set()
    for move, who, length in moves:
        name, tokens = str(who), prompt(length, 100 * (who % 3))
        if move == "e" and name not in coming | there:
            if expect(exchange, name, tokens) is not None:
                coming.add(name)
        elif move == "a" and name in coming:
            exchange.arrived(name)
            coming.remove(name)
            there.add(name)
        elif move == "k" and name not in coming | there:
            exchange.keep(name, "", tokens)
            there.add(name)
        elif move == "n":
            exchange.let_go(name)
            coming.discard(name)
            there.discard(name)
        assert blocks.set_aside == exchange.num_coming == len(coming)
        assert blocks.lent == len(coming) + len(there)
    for name in coming | there:
        exchange.let_go(name)
    assert blocks.blocks_held == blocks.lent == blocks.set_aside == 0
    assert all(pool.available == pool.num_blocks for pool in blocks.pools)


def test_without_a_cache_nothing_is_kept():
    blocks = BlockManager(
        num_slots=1, max_model_len=64, block_size=4, num_blocks=(8,), windows=(None,), reach=8, caching=False
    )
    exchange = Exchange(blocks, range(0))
    exchange.keep("a", "", prompt(20))
    assert blocks.blocks_held == 0
    assert exchange.expect("b", "", prompt(20), 0, [0]) is None
    assert pytest.approx(0) == blocks.set_aside

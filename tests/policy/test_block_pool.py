"""A pool of blocks against the simplest model of one: a count of holders for each block."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from headrace.policy.block_pool import BlockPool

SIZE = 8


class Pool(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(SIZE)
        self.refs = [0] * SIZE
        self.cached = set()
        self.idle = []
        self.epochs = [0] * SIZE

    @rule(target=held, count=st.integers(1, 4))
    def take(self, count):
        if count > self.pool.available:
            return multiple()
        for block in self.pool.evict(self.pool.shortage(count)).tolist():
            assert block == self.idle.pop(0), "the least recently used goes first"
            self.cached.remove(block)
        blocks = self.pool.take(count)
        assert len(set(blocks.tolist())) == count
        for block in blocks.tolist():
            assert self.refs[block] == 0 and block not in self.idle
            self.refs[block] = 1
            self.epochs[block] += 1
            assert self.pool.epochs[block] == self.epochs[block]
        return blocks

    @rule(blocks=held)
    def keep(self, blocks):
        self.pool.cached[blocks] = True
        self.cached |= set(blocks.tolist())

    @precondition(lambda self: self.cached)
    @rule(target=held, pick=st.integers(0, SIZE))
    def share(self, pick):
        block = sorted(self.cached)[pick % len(self.cached)]
        blocks = np.array([block], np.int32)
        self.pool.share(blocks)
        if self.refs[block] == 0:
            self.idle.remove(block)
        self.refs[block] += 1
        return blocks

    @rule(blocks=consumes(held))
    def release(self, blocks):
        self.pool.release(blocks)
        for block in blocks.tolist()[::-1]:
            self.refs[block] -= 1
            if self.refs[block] == 0 and block in self.cached:
                self.idle.append(block)

    @invariant()
    def counts_agree(self):
        assert self.pool.refs.tolist() == self.refs
        assert self.pool.num_idle == len(self.idle)
        assert self.pool.num_held == sum(count > 0 for count in self.refs)
        assert self.pool.available == SIZE - self.pool.num_held


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)

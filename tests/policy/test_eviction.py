"""The order of eviction against a list that is kept sorted."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.policy.eviction import EXPIRED, ORDINARY, PINNED, EvictionOrder

SIZE = 12
some = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=5, unique=True)


class Order(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.order = EvictionOrder(SIZE)
        self.here = {}  # block: (rank, time of last use)
        self.time = 0
        self.put_at = []

    @rule(blocks=some, rank=st.sampled_from([EXPIRED, ORDINARY, ORDINARY, PINNED]))
    def put(self, blocks, rank):
        tick = self.order.put(np.array(blocks, np.int32), rank)
        uses = {}
        for block in blocks:
            self.time += 1
            self.here[block] = (rank, self.time)
            uses[block] = self.time
        self.put_at.append((tick, uses))

    @rule(blocks=some)
    def remove(self, blocks):
        self.order.remove(np.array(blocks, np.int32))
        for block in blocks:
            self.here.pop(block, None)

    @rule(pick=st.integers(0, 100), rank=st.sampled_from([EXPIRED, ORDINARY]))
    def move(self, pick, rank):
        if not self.put_at:
            return
        tick, uses = self.put_at[pick % len(self.put_at)]
        self.order.move(np.array(list(uses), np.int32), tick, rank)
        for block, used in uses.items():
            if self.here.get(block, (0, 0))[1] == used:
                self.time += 1
                self.here[block] = (rank, self.time)

    @rule(count=st.integers(0, 6))
    def pop(self, count):
        count = min(count, len(self.here))
        expected = sorted(self.here, key=self.here.__getitem__)[:count]
        assert self.order.pop(count).tolist() == expected
        for block in expected:
            del self.here[block]

    @invariant()
    def agree(self):
        assert self.order.blocks().tolist() == sorted(self.here)
        assert len(self.order) == len(self.here)


TestOrder = Order.TestCase
TestOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_queues_do_not_grow_with_uses():
    order = EvictionOrder(8)
    for _ in range(5000):
        order.put(np.arange(8, dtype=np.int32))
    assert sum(len(queue) for queue in order._queues) < 500
    assert order.pop(8).tolist() == list(range(8))

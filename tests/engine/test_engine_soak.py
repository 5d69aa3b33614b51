"""A thousand mixed requests with random aborts on a null device: everything comes back, every token is the one it must
be, and what is remembered stays bounded. tests/test_soak.py has two thousand on the kernels."""

import gc
import random

import pytest
from tests.engine.engine_driver import capacity, collect, expected, make_engine, request

from headrace.core.request import FinishReason

COUNT = 1000
STEMS = [[stem, *range(2, 20)] for stem in range(6)]


def mixed(index, draw):
    prompt = [*draw.choice(STEMS)[: draw.randrange(20)], draw.randrange(50)]
    salt = draw.choice(["", "", f"tenant {index}"])
    return request(
        f"r{index}",
        prompt,
        draw.choice([3, 10, 27]),
        seed=draw.randrange(3),
        eos_ids=draw.choice([(), (7,)]),
        cache_salt=salt,
        logprobs=draw.choice([None, None, None, 1]),
        prompt_logprobs=draw.choice([None, None, None, None, 0]),
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_soak(depth):
    draw = random.Random(depth)
    has = capacity(slots=8, block_size=4, blocks=24, max_model_len=48)
    engine = make_engine(has, max_num_batched_tokens=32, pipeline_depth=depth, request_log=50, step_ring=50)
    live, added, ended, aborted = {}, 0, 0, 0
    objects = {}
    while added < COUNT or engine.has_work:
        while added < COUNT and len(live) < 24:
            one = mixed(added, draw)
            live[one.request_id] = (one, {})
            engine.add(one, 0.0)
            added += 1
        if draw.random() < 0.15 and live:
            engine.abort([draw.choice(list(live))], 0.0)
        for delta in engine.step(lambda: 0.0):
            one, got = live[delta.request_id]
            collect([delta], got)
            if delta.finish_reason is None:
                continue
            tokens, whole = got[delta.request_id].tokens, expected(one, has)
            if delta.finish_reason is FinishReason.ABORT:
                assert tokens == whole[: len(tokens)]
                aborted += 1
            else:
                assert tokens == whole
            del live[delta.request_id]
            ended += 1
            if ended in (COUNT // 4, COUNT // 2, COUNT - 24):
                gc.collect()
                objects[ended] = len(gc.get_objects())
    stats = engine.stats()
    assert ended == sum(stats.finished.values()) == COUNT
    assert stats.finished["abort"] == aborted > 50
    assert stats.blocks_used == stats.running == stats.waiting == 0
    assert stats.preemptions > 20 and stats.cached_tokens > 500
    warm, *later = objects.values()
    assert max(later) < warm + 200, "objects pile up"


def test_cached_prefixes_are_bounded_by_the_pool():
    has = capacity(slots=2, block_size=4, blocks=12, max_model_len=48)
    engine = make_engine(has)
    for i in range(200):
        engine.add(request(f"r{i}", [i % 50, i // 50, *range(12)], 6, cache_salt=str(i % 7)), 0.0)
    while engine.has_work:
        engine.step(lambda: 0.0)
    stats = engine.stats()
    assert 0 < stats.blocks_cached <= 12
    assert len(engine._blocks.cache) == stats.blocks_cached

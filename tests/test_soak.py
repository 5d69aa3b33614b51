"""Two thousand mixed requests, many of them aborted at odd moments: nothing may be left behind, in blocks or bytes."""

from __future__ import annotations

import gc
import random

import psutil
import pytest
from tests.tiny_models import VOCAB, tiny_program

from headrace.core.config import Config
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.worker.assembly import assemble
from headrace.worker.devices import cpu_device

REQUESTS = 2000
WARM_UP = 600
GROWTH_BYTES = 4 * 2**20


def mixed_request(draw: random.Random, index: int) -> Request:
    shared = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    prompt = shared[: draw.choice([0, 0, 16, 20, 32])] + [draw.randrange(VOCAB) for _ in range(draw.randint(1, 24))]
    params = SamplingParams(
        temperature=draw.choice([0.0, 1.0]),
        top_p=draw.choice([1.0, 0.9]),
        max_tokens=draw.choice([1, 8, 16, 60]),
        logprobs=draw.choice([None, None, 2]),
        prompt_logprobs=draw.choice([None, None, None, 1]),
        stop_token_ids=draw.choice([(), (5, 7)]),
        logit_bias=draw.choice([None, {3: 2.0}]),
        min_tokens=draw.choice([0, 1]),
        repetition_penalty=draw.choice([1.0, 1.2]),
    )
    salt = draw.choice(["", "", "tenant"])
    return Request(f"r{index}", prompt, params, params.max_tokens or 0, seed=index, cache_salt=salt)


@pytest.mark.parametrize("depth", [1, 2])
def test_nothing_is_left_behind(depth):
    executor = assemble(
        tiny_program("q8", kv_dtype="int8"),
        cpu_device(threads=1),
        num_slots=16,
        num_blocks=(20,),
        windows=(None,),
        max_model_len=128,
        max_tokens=64,
        depth=depth,
    )
    engine = Engine(executor, Config(max_num_seqs=16, max_num_batched_tokens=64, pipeline_depth=depth))
    draw = random.Random(0)
    live: set[str] = set()
    ended = {"stop": 0, "length": 0, "abort": 0}
    added, baseline = 0, 0
    while added < REQUESTS or engine.has_work:
        for _ in range(min(draw.choice([0, 1, 1, 4]), REQUESTS - added, 40 - len(live))):
            engine.add(mixed_request(draw, added), 0.0)
            live.add(f"r{added}")
            added += 1
        if live and draw.random() < 0.15:
            engine.abort([draw.choice(sorted(live)), "unknown"], 0.0)
        for delta in engine.step(lambda: 0.0):
            if delta.finish_reason is not None:
                live.remove(delta.request_id)
                ended[delta.finish_reason] += 1
        if added >= WARM_UP and not baseline:
            gc.collect()
            baseline = psutil.Process().memory_info().rss
    executor.close()
    gc.collect()
    grown = psutil.Process().memory_info().rss - baseline
    stats = engine.stats()
    assert (stats.blocks_used, stats.running, stats.waiting) == (0, 0, 0)
    assert not live
    assert sum(ended.values()) == REQUESTS
    assert all(ended.values())
    assert stats.preemptions > 0
    assert grown <= GROWTH_BYTES
